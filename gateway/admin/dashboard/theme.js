"use strict";
/* Sets the chosen theme, or the system's, before anything is drawn. */
(() => {
  const KEY = "nearhit.theme";
  const apply = (theme) => {
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  };
  const stored = () => { try { return localStorage.getItem(KEY) || "auto"; } catch { return "auto"; } };
  apply(stored());
  document.addEventListener("DOMContentLoaded", () => {
    const choice = document.getElementById("theme");
    choice.value = stored();
    choice.addEventListener("change", () => {
      apply(choice.value);
      try { localStorage.setItem(KEY, choice.value); } catch { /* it holds until the page is left */ }
      document.dispatchEvent(new Event("theme"));
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("theme")));
  });
})();
