// Every word of the page, in English and Chinese. The keys are the page's data-word attributes.

const english = {
  skip: "Skip to the prompt", ask: "Ask the model", mode: "Kind of request", model: "Model", completion: "Completion",
  chat: "Chat", answer: "Answer", prompt: "Prompt", run: "Run", stop: "Stop", clear: "Clear",
  curl: "Copy as curl", copied: "Copied.", copyFailed: "The browser did not allow copying.",
  keys: "Ctrl+Enter runs, Esc stops.", settings: "Settings", temperature: "Temperature",
  maxTokens: "Most tokens", seed: "Seed", seedHint: "any", api: "API description", errors: "Errors explained",
  metrics: "Figures", emptyCompletion: "Write the beginning of a text below, and the model goes on.",
  emptyChat: "Say something below, and the model answers.", user: "You", assistant: "Model",
  noModel: "the engine is not there yet", context: "context {0}", parameters: "{0} parameters",
  writing: "Writing… {0} tokens, {1} tokens/s", waiting: "Waiting…", stopped: "Stopped after {0} tokens.",
  done: "{0} tokens in {1} s, {2} tokens/s", cut: "Limit reached: {0} tokens in {1} s, {2} tokens/s",
  emptyPrompt: "Write something first.", badSettings: "One of the settings is out of range.",
  unreachable: "The server does not answer. Is it still running?",
  engine_unavailable: "The engine that computes the answers is not there. Try again in a moment.",
  queue_full: "Too many requests are waiting. Try again in a moment.",
  broken: "The connection broke before the answer was complete.",
  shutting_down: "The server is being stopped.",
  signIn: "Sign in", signOut: "Sign out", key: "Key", noKey: "Paste a key first; it has no spaces.",
  signInHint: "This service asks for a key. Whoever runs it has one. It is kept in this tab only.",
  unauthorized: "This key is not known here, has expired or was revoked.",
  forbidden: "This key may not use the models: it lacks the scope “use”.",
};

const chinese = {
  skip: "跳到输入框", ask: "向模型提问", mode: "请求方式", model: "模型", completion: "续写", chat: "对话", answer: "回答",
  prompt: "输入", run: "运行", stop: "停止", clear: "清空", curl: "复制为 curl", copied: "已复制。",
  copyFailed: "浏览器不允许复制。", keys: "Ctrl+Enter 运行，Esc 停止。", settings: "设置", temperature: "温度",
  maxTokens: "最多词元数", seed: "随机种子", seedHint: "任意", api: "接口说明", errors: "错误说明", metrics: "指标",
  emptyCompletion: "在下面写一段开头，模型会接着写。", emptyChat: "在下面说点什么，模型会回答。",
  user: "你", assistant: "模型", noModel: "引擎尚未就绪", context: "上下文 {0}", parameters: "{0} 参数",
  writing: "正在生成… {0} 个词元，每秒 {1} 个", waiting: "等待中…", stopped: "已停止，共 {0} 个词元。",
  done: "{0} 个词元，用时 {1} 秒，每秒 {2} 个", cut: "已达词元上限：{0} 个词元，用时 {1} 秒，每秒 {2} 个",
  emptyPrompt: "请先输入内容。", badSettings: "有一项设置超出范围。",
  unreachable: "服务器没有响应，它还在运行吗？", engine_unavailable: "计算引擎不可用，请稍后再试。",
  queue_full: "排队的请求太多，请稍后再试。", broken: "回答完成之前连接中断了。", shutting_down: "服务器正在停止。",
  signIn: "登录", signOut: "退出", key: "密钥", noKey: "请先粘贴密钥，其中不含空格。",
  signInHint: "此服务需要密钥，请向运行者索取。密钥只保存在当前标签页。",
  unauthorized: "此密钥未知、已过期或已被吊销。", forbidden: "此密钥无权使用模型：缺少“use”权限。",
};

let words = english;

/** Choose the language; returns its tag. */
export function choose(tag) {
  words = tag.toLowerCase().startsWith("zh") ? chinese : english;
  return words === chinese ? "zh-CN" : "en";
}

/** Return a phrase with its numbers put in, or undefined when the page has no words for it. */
export function say(key, ...values) {
  return words[key]?.replace(/\{(\d)\}/g, (_, place) => values[place]);
}
