// The user of this page and what it may do, as the server says.

import { hasActions } from "./dom.js";

let current = null;

// The answer of the server, null before the first one: name, rights, and the session if the user signed in.
export const user = () => current;

export function setUser(answer) {
  current = answer;
}

// Whether a name matches a pattern, in which each * stands for any text.
function matches(pattern, name) {
  const [first, ...rest] = pattern.split("*");
  if (!rest.length) return first === name;
  if (!name.startsWith(first)) return false;
  const last = rest.pop();
  let at = first.length;
  for (const part of rest) {
    const found = name.indexOf(part, at);
    if (found < 0) return false;
    at = found + part.length;
  }
  return name.length - at >= last.length && name.endsWith(last);
}

const allows = (action, isMeant) =>
  Boolean(current?.rights.some(({ actions, names }) => actions.includes(action) && names.some(isMeant)));

// Whether the user may do this with the tube or schedule of this name, with any, and with all.
export const may = (action, name) => allows(action, (pattern) => matches(pattern, name));
export const mayWithAny = (action) => allows(action, () => true);
export const mayWithAll = (action) => allows(action, (pattern) => /^\*+$/.test(pattern));

// Whether this page offers the action.
export const offers = (action, name) => hasActions && may(action, name);
