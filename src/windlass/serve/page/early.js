// Runs before the first paint, so that a chosen colour or language does not flash in late. Pages that the server made
// in a language keep it.
{
  const theme = localStorage.getItem("windlass-theme");
  if (theme) document.documentElement.dataset.theme = theme;
  const language = localStorage.getItem("windlass-language") ?? navigator.language;
  if (!("keepsLanguage" in document.currentScript.dataset)) {
    document.documentElement.lang = language.toLowerCase().startsWith("zh") ? "zh-CN" : "en";
  }
}
