// Tabs that are links: each has its own address. Arrow keys move between them, Enter opens one.

import { make, mark, say, show } from "./dom.js";

// `panel` is the id of the element that shows the open tab.
export function tabs(label, panel) {
  const list = make("div", { class: "tabs", role: "tablist", "aria-label": label });
  const entries = new Map();
  let shown = null;

  function create(name, text) {
    const count = make("span", { class: "badge" });
    const link = make("a", { role: "tab", id: `tab-${name}`, "aria-controls": panel }, make("span", {}, text), " ", count);
    return { link, count };
  }

  // Shows the tabs: `items` have name, text, href and perhaps a count.
  function fill(items, open) {
    const names = new Set(items.map((item) => item.name));
    for (const [name, { link }] of entries) {
      if (names.has(name)) continue;
      link.remove();
      entries.delete(name);
    }
    for (const [place, { name, text, href, count }] of items.entries()) {
      if (!entries.has(name)) entries.set(name, create(name, text));
      const entry = entries.get(name);
      // Some tabs come later than the others, when more is known.
      if (list.children[place] !== entry.link) list.insertBefore(entry.link, list.children[place] ?? null);
      mark(entry.link, "href", href);
      mark(entry.link, "aria-selected", name === open ? "true" : "false");
      mark(entry.link, "tabindex", name === open ? "0" : "-1");
      show(entry.count, count !== undefined);
      say(entry.count, count ?? "");
    }
    if (open !== shown && list.isConnected) {
      entries.get(open)?.link.scrollIntoView({ block: "nearest", inline: "nearest" });
      shown = open;
    }
    document.getElementById(panel)?.setAttribute("aria-labelledby", `tab-${open}`);
  }

  list.addEventListener("keydown", (event) => {
    const links = [...list.children];
    const index = links.indexOf(document.activeElement);
    const next = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: links.length - 1 }[event.key];
    if (event.key === " ") document.activeElement.click();
    else if (next === undefined || index < 0) return;
    else links[(next + links.length) % links.length].focus();
    event.preventDefault();
  });
  return { element: list, fill };
}
