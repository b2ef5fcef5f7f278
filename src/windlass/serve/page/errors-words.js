// The texts of the error pages.

export const words = {
  en: {
    title: "Errors", intro: "Every error has a code. Its page says what happened and what to do; it needs neither a key nor the internet.",
    search: "Search by code, status or words", found: "{count} of {all} codes", code: "Code", status: "Status", meaning: "What happened",
    type: "Type", all: "All errors", remedy: "What to do", example: "Example", refused: "Refused", accepted: "Accepted",
    tryIt: "Try the accepted body", plain: "This page alone", nothing: "No code contains these words.", unknown: "There is no code “{code}”.",
    client: "The request", access: "Keys and origins", wait: "Wait and try again", server: "The server",
  },
  zh: {
    title: "错误", intro: "每个错误都有一个代码，其页面说明发生了什么、该怎么办；查看时无需密钥，也无需联网。",
    search: "按代码、状态或文字搜索", found: "{count} / {all} 个代码", code: "代码", status: "状态", meaning: "发生了什么",
    type: "类型", all: "所有错误", remedy: "怎么办", example: "示例", refused: "被拒绝", accepted: "被接受",
    tryIt: "试试被接受的请求", plain: "单独查看此页", nothing: "没有代码包含这些文字。", unknown: "没有代码“{code}”。",
    client: "请求本身", access: "密钥与来源", wait: "稍后再试", server: "服务器",
  },
};
