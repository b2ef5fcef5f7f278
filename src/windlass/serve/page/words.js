// The words of the shell, in English and Chinese, and how words are found. Views bring their own.

const english = {
  skip: "Skip to the content", views: "Views", play: "Playground", api: "API", errors: "Errors", runs: "Runs", plan: "Planner",
  models: "Models", service: "Service", theme_auto: "Colours: as the system", theme_light: "Colours: light",
  theme_dark: "Colours: dark", signIn: "Sign in", signOut: "Sign out", key: "Key",
  signInHint: "This service asks for a key. Whoever runs it can make one with windlass keys make. It is kept in this tab only.",
  errorsOpen: "Errors explained, without a key", noKey: "Paste a key first; it has no spaces.",
  door_unauthorized: "This key is not known here, has expired or was revoked.",
  door_forbidden: "This key may not use this page: it lacks the scope “use”.",
  door_unreachable: "The server does not answer. Is it still running?",
  door_other: "The server could not check the key. Try again in a moment.",
  loading: "Loading…", opened: "{title}", noSuchView: "There is no such view.", backToStart: "To the playground",
  notForYou: "Your key may not see this.",
  notForYouHint: "It needs the scope “{scope}”; your key has: {scopes}. Ask whoever runs the service for another key.",
  none: "none", copy: "Copy", copied: "Copied", copyFailed: "Copying was not allowed",
  readMore: "What “{code}” means", requestId: "Request", retry: "Try again",
  outage: "The server does not answer. What you see may be old; trying again every few seconds.",
  back: "The server is back.", failure_unreachable: "The server does not answer. Is it still running?",
  failure_broken: "The connection broke before the answer was complete.",
  failure_engine_unavailable: "The engine that computes the answers is not there. Try again in a moment.",
  failure_queue_full: "Too many requests are waiting. Try again in a moment.",
  failure_overloaded: "The service has more to do than it can. Try again in a moment.",
  failure_shutting_down: "The server is being stopped.", failure_internal: "The server made a mistake; it was written to its log.",
  failure_rate_limited: "You are asking faster than your key may. Wait a moment.",
  failure_quota_exhausted: "The quota of your key is used up.",
  failure_too_many_concurrent: "Your key is already asking as much at a time as it may.",
  failure_forbidden: "Your key may not do this.", failure_unauthorized: "This key is not known here, has expired or was revoked.",
  failure_not_found: "There is no such thing here.", failure_engine_failed: "The engine failed while it answered.",
};

const chinese = {
  skip: "跳到正文", views: "页面", play: "体验", api: "接口", errors: "错误", runs: "训练", plan: "规划", models: "模型", service: "服务",
  theme_auto: "配色：跟随系统", theme_light: "配色：浅色", theme_dark: "配色：深色", signIn: "登录", signOut: "退出", key: "密钥",
  signInHint: "此服务需要密钥，运行者可用 windlass keys make 生成。密钥只保存在当前标签页。",
  errorsOpen: "错误说明（无需密钥）", noKey: "请先粘贴密钥，其中不含空格。",
  door_unauthorized: "此密钥未知、已过期或已被吊销。", door_forbidden: "此密钥无权使用本页：缺少“use”权限。",
  door_unreachable: "服务器没有响应，它还在运行吗？", door_other: "服务器无法核对密钥，请稍后再试。",
  loading: "加载中…", opened: "{title}", noSuchView: "没有这个页面。", backToStart: "前往体验页",
  notForYou: "你的密钥无权查看此页。", notForYouHint: "需要“{scope}”权限；你的密钥拥有：{scopes}。请向运行者索取其他密钥。",
  none: "无", copy: "复制", copied: "已复制", copyFailed: "浏览器不允许复制",
  readMore: "“{code}”是什么意思", requestId: "请求", retry: "重试",
  outage: "服务器没有响应。所见内容可能已过时；每隔几秒自动重试。", back: "服务器已恢复。",
  failure_unreachable: "服务器没有响应，它还在运行吗？", failure_broken: "回答完成之前连接中断了。",
  failure_engine_unavailable: "计算引擎不可用，请稍后再试。", failure_queue_full: "排队的请求太多，请稍后再试。",
  failure_overloaded: "服务负载过高，请稍后再试。", failure_shutting_down: "服务器正在停止。",
  failure_internal: "服务器出错了，已写入日志。", failure_rate_limited: "请求过快，超出密钥的限制，请稍候。",
  failure_quota_exhausted: "密钥的配额已用完。", failure_too_many_concurrent: "密钥的并发请求已达上限。",
  failure_forbidden: "你的密钥无权这样做。", failure_unauthorized: "此密钥未知、已过期或已被吊销。",
  failure_not_found: "这里没有这样的内容。", failure_engine_failed: "引擎在回答时出错。",
};

export const shell = { en: english, zh: chinese };

/**
 * Return the t of a view: its own words first, then the shell's. t(key, { name: value }) fills in {name}; a missing key
 * is shown as itself, so that a test finds it. t.own(key) is undefined instead.
 */
export function speaker(language, words = {}) {
  const own = (key, values = {}) => (words[language]?.[key] ?? shell[language][key])
    ?.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
  const t = (key, values) => own(key, values) ?? key;
  t.own = own;
  return t;
}
