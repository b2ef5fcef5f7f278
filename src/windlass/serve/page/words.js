// The texts of the shell in English and Chinese, and how a text is looked up. Views have their own.

const english = {
  skip: "Skip to the content", views: "Views", play: "Playground", api: "API", errors: "Errors", runs: "Runs", plan: "Planner",
  models: "Models", service: "Service", theme_auto: "Colours: as the system", theme_light: "Colours: light",
  theme_dark: "Colours: dark", signIn: "Sign in", signOut: "Sign out", key: "Key",
  signInHint: "This service needs a key. The operator of the service makes keys with windlass keys make. The page keeps the key in this tab only.",
  errorsOpen: "Errors explained, without a key", noKey: "Paste a key first; it has no spaces.",
  signin_unauthorized: "This key is unknown, has expired or was revoked.",
  signin_forbidden: "This key cannot open this page: it lacks the scope “use”.",
  signin_unreachable: "The server does not answer. Is it still running?",
  signin_other: "The server could not check the key. Try again in a moment.",
  loading: "Loading…", opened: "{title}", noSuchView: "There is no such view.", backToStart: "To the playground",
  notForYou: "Your key may not see this view.",
  notForYouHint: "It needs the scope “{scope}”; your key has: {scopes}. Ask the operator of the service for another key.",
  none: "none", copy: "Copy", copied: "Copied", copyFailed: "The browser did not allow copying",
  readMore: "What “{code}” means", requestId: "Request", retry: "Try again",
  outage: "The server does not answer. This page may be out of date; it retries every few seconds.",
  back: "The server is back.", failure_unreachable: "The server does not answer. Is it still running?",
  failure_broken: "The connection was lost before the answer was complete.",
  failure_engine_unavailable: "No engine is available. Try again in a moment.",
  failure_queue_full: "Too many requests are waiting. Try again in a moment.",
  failure_overloaded: "The service is overloaded. Try again in a moment.",
  failure_shutting_down: "The server is stopping.", failure_internal: "Internal error of the server; the details are in its log.",
  failure_rate_limited: "Your key has reached its rate limit. Wait a moment.",
  failure_quota_exhausted: "The quota of your key is used up.",
  failure_too_many_concurrent: "Your key has its maximum number of requests in progress.",
  failure_forbidden: "Your key may not do this.", failure_unauthorized: "This key is unknown, has expired or was revoked.",
  failure_not_found: "Not found on this server.", failure_engine_failed: "The engine failed while it generated the answer.",
};

const chinese = {
  skip: "跳到正文", views: "页面", play: "体验", api: "接口", errors: "错误", runs: "训练", plan: "规划", models: "模型", service: "服务",
  theme_auto: "配色：跟随系统", theme_light: "配色：浅色", theme_dark: "配色：深色", signIn: "登录", signOut: "退出", key: "密钥",
  signInHint: "此服务需要密钥，由服务管理员用 windlass keys make 生成。密钥只保存在当前标签页。",
  errorsOpen: "错误说明（无需密钥）", noKey: "请先粘贴密钥，其中不含空格。",
  signin_unauthorized: "此密钥未知、已过期或已被吊销。", signin_forbidden: "此密钥无权使用本页：缺少“use”权限范围。",
  signin_unreachable: "服务器没有响应，它还在运行吗？", signin_other: "服务器无法核对密钥，请稍后再试。",
  loading: "加载中…", opened: "{title}", noSuchView: "没有这个页面。", backToStart: "前往体验页",
  notForYou: "你的密钥无权查看此页。", notForYouHint: "需要“{scope}”权限范围；你的密钥拥有：{scopes}。请向服务管理员索取其他密钥。",
  none: "无", copy: "复制", copied: "已复制", copyFailed: "浏览器不允许复制",
  readMore: "“{code}”是什么意思", requestId: "请求", retry: "重试",
  outage: "服务器没有响应。页面内容可能已过时；每隔几秒自动重试。", back: "服务器已恢复。",
  failure_unreachable: "服务器没有响应，它还在运行吗？", failure_broken: "回答完成之前连接中断了。",
  failure_engine_unavailable: "没有可用的推理引擎，请稍后再试。", failure_queue_full: "等待的请求太多，请稍后再试。",
  failure_overloaded: "服务过载，请稍后再试。", failure_shutting_down: "服务器正在停止。",
  failure_internal: "服务器内部错误，详情见其日志。", failure_rate_limited: "你的密钥已达速率限制，请稍候。",
  failure_quota_exhausted: "密钥的配额已用完。", failure_too_many_concurrent: "密钥的并发请求已达上限。",
  failure_forbidden: "你的密钥无权这样做。", failure_unauthorized: "此密钥未知、已过期或已被吊销。",
  failure_not_found: "服务器上没有此内容。", failure_engine_failed: "引擎在生成回答时失败。",
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
