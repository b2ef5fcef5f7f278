// The texts of the API reference and its request editor.

const english = {
  title: "API", operations: "Operations", search: "Find an operation", nothing: "No operation contains these words.", scope: "needs a key with “{scope}”", open: "needs no key",
  parameters: "Parameters", body: "Body", answer: "Answer", errorsOf: "Errors", examples: "Examples", code: "As code", tryIt: "Try it",
  name: "Name", type: "Type", range: "Range", byDefault: "Default", about: "Description", required: "required", in_path: "in the path",
  in_query: "in the query", in_header: "a header", unsupported: "{count} fields of OpenAI’s API that are not supported here; only null is accepted",
  inside: "Fields of {name}", status: "Status", meaning: "Meaning", streamNote: "With stream: true, server-sent events.",
  group_text: "Text", group_tokens: "Tokens and dry runs", group_models: "Models and keys", group_watch: "Monitoring", group_admin: "Administration", group_runs: "Runs, plans and registry", group_people: "Pages",
  range_characters: "{range} characters", range_entries: "{range} entries", one_of: "one of {values}", none: "none",
  request: "Request body (JSON)", editorHint: "Completions appear as you type: ↓ selects, Tab accepts, Esc closes, Ctrl+Space shows them. Ctrl+Enter sends.",
  send: "Send", sendSure: "This changes the service. Press again to send", cancel: "Stop", response: "Response", headers: "Headers", took: "{ms} ms",
  candidates: "Completions", fixes: "Mistakes", fix: "Fix: {about}", default: "default {value}", useCorrected: "Use the corrected body", sending: "Sending…", answered: "The server answered with status {status}.",
  notJson: "This is not valid JSON; it is sent unchanged.", empty: "empty", whole: "All fields", optional: "Optional: {names}", count: "{count} operations",
};

const chinese = {
  title: "接口", operations: "操作", search: "查找操作", nothing: "没有操作包含这些文字。", scope: "需要带“{scope}”权限范围的密钥", open: "无需密钥",
  parameters: "参数", body: "请求体", answer: "回答", errorsOf: "错误", examples: "示例", code: "对应的代码", tryIt: "试一试",
  name: "名称", type: "类型", range: "范围", byDefault: "默认", about: "说明", required: "必需", in_path: "在路径中",
  in_query: "在查询串中", in_header: "请求头", unsupported: "OpenAI 接口中有 {count} 个字段此处不支持，只接受 null",
  inside: "{name} 的字段", status: "状态", meaning: "含义", streamNote: "stream 为 true 时是服务器推送事件。",
  group_text: "文本", group_tokens: "词元与试算", group_models: "模型与密钥", group_watch: "监控", group_admin: "管理", group_runs: "训练、规划与注册表", group_people: "页面",
  range_characters: "{range} 个字符", range_entries: "{range} 项", one_of: "{values} 之一", none: "无",
  request: "请求体（JSON）", editorHint: "输入时给出补全：↓ 选择，Tab 采用，Esc 关闭，Ctrl+空格 显示。Ctrl+Enter 发送。",
  send: "发送", sendSure: "这会改变服务，再按一次发送", cancel: "停止", response: "响应", headers: "响应头", took: "{ms} 毫秒",
  candidates: "补全", fixes: "错误", fix: "修正：{about}", default: "默认 {value}", useCorrected: "采用修正后的请求体", sending: "发送中…", answered: "已响应，状态 {status}。",
  notJson: "这不是有效的 JSON，将原样发送。", empty: "空", whole: "全部字段", optional: "可选：{names}", count: "{count} 个操作",
};

export const words = { en: english, zh: chinese };
