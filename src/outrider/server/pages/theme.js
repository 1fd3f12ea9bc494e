"use strict";
// Before anything is drawn: the theme that was chosen on this machine; without one the system's holds.
(() => {
  try {
    const chosen = localStorage.getItem("outrider.theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch { /* no storage: the system's theme */ }
})();
