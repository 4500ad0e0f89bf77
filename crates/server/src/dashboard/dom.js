// Builds and changes elements. Texts are set as text, never as HTML.

// A new element. An attribute that is a function is a listener; false, null and undefined leave an attribute or a child out.
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// Sets a text only when it differs: screen readers and selections notice every change.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Sets an attribute only when it differs; null and false remove it.
export function mark(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== `${value}`) node.setAttribute(name, value);
}

export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

// Reports an event to screen readers.
export const announce = (text) => {
  document.getElementById("announcement").textContent = text;
};

// Whether this page may offer actions: the server decides when it sends the page.
export const hasActions = document.documentElement.dataset.actions !== "none";

// Pairs of a name and a value, whose values change with `fill`. Absent values hide their pair.
export function pairs(names, className = "pairs") {
  const values = names.map(() => make("dd"));
  const list = make("dl", { class: className },
    names.map((name, i) => make("div", {}, make("dt", {}, name), values[i])));
  const fill = (texts) => texts.forEach((text, i) => {
    show(values[i].parentNode, text !== null && text !== undefined);
    say(values[i], text ?? "");
  });
  return { element: list, fill };
}

// A section with a heading.
export const section = (title, ...children) =>
  make("section", { class: "block", "aria-label": title }, make("h3", {}, title), ...children);

// Shows short remarks, each as a separate element.
export function remark(node, remarks) {
  if (node.textContent !== remarks.join("")) {
    node.replaceChildren(...remarks.map((text) => make("span", { class: "remark" }, text)));
  }
}
