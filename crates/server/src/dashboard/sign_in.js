// The form to sign in, the name of the user, and the button to sign out. The token is sent once and not kept.

import { signIn, signOut } from "./api.js";
import { announce, mark, say, show } from "./dom.js";
import { setUser, user } from "./user.js";

const part = (id) => document.getElementById(id);

function showError(text) {
  say(part("token-error"), text);
  show(part("token-error"), text !== "");
}

// Shows the form; `text` says why the user has to sign in again.
export function showForm(text = "") {
  showError(text);
  show(part("token-form"), true);
  showUser();
  part("token").focus();
}

export function hideForm() {
  if (!isFormShown()) return;
  show(part("token-form"), false);
  showUser();
}

export const isFormShown = () => !part("token-form").hidden;

// Shows who is signed in; a server without users has nothing to show.
export function showUser() {
  const isSignedIn = Boolean(user()?.session);
  say(part("user-name"), isSignedIn ? user().user : "");
  show(part("user-name"), isSignedIn);
  show(part("sign-out"), isSignedIn);
  show(part("sign-in"), !isSignedIn && Boolean(user()?.has_users) && !isFormShown());
}

function problemOf(error) {
  if (error.status === 401) return "The token is wrong.";
  return error.status ? `The server refused the request: ${error.message}.` : "The server does not respond. Try again.";
}

async function submit(done) {
  const [field, button] = [part("token"), part("token-form").querySelector("button")];
  const token = field.value.trim();
  field.value = "";
  button.disabled = true;
  try {
    await signIn(token);
  } catch (error) {
    showError(problemOf(error));
    mark(field, "aria-invalid", "true");
    field.focus();
    return;
  } finally {
    button.disabled = false;
  }
  showError("");
  mark(field, "aria-invalid", null);
  hideForm();
  part("view").focus({ preventScroll: true });
  announce(`Signed in as ${user().user}`);
  done();
}

async function leave(done) {
  try {
    await signOut();
  } catch (error) {
    // A session that has ended already needs no end.
    if (error.status !== 401) return done(`You are still signed in. ${problemOf(error)}`);
  }
  setUser(null);
  showUser();
  announce("Signed out");
  done("");
}

// Connects the controls. `signedIn` and `signedOut(problem)` are called afterwards, `wanted` when a guest wants to sign in.
export function start({ signedIn, signedOut, wanted }) {
  part("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    submit(signedIn);
  });
  part("sign-out").addEventListener("click", () => leave(signedOut));
  part("sign-in").addEventListener("click", wanted);
}
