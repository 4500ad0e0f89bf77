// Dialogs that ask before something is changed. Escape and a click beside a dialog close it.

import { announce, make, mark, say, show } from "./dom.js";
import * as format from "./format.js";

let numbers = 0;

// Opens a dialog. `prepare(signal, status)` may count first and returns the text of the question; `act(signal, progress)` does the
// work and returns the text of the result. `isReady` says whether the fields of `body` allow to confirm. With `isCorrected` the fields
// can be corrected after the server refused them.
export function ask({ title, body = [], confirm, danger = false, prepare, isReady = () => true, isCorrected = false, act, done }) {
  const abort = new AbortController();
  const heading = `dialog-${(numbers += 1)}`;
  const status = make("p", { class: "status", role: "status" });
  const problem = make("p", { class: "problem", role: "alert", hidden: true });
  const bar = make("progress", { hidden: true, "aria-label": "Progress" });
  const yes = make("button", { type: "submit", class: danger ? "danger" : "primary", "data-role": "confirm", disabled: true }, confirm);
  const no = make("button", { type: "button", "data-role": "cancel", click: () => stop() }, "Cancel");
  let phase = "preparing";

  const form = make("form", { method: "dialog", submit: (event) => {
    event.preventDefault();
    if (phase === "ready" && isReady()) run();
  } },
    make("h2", { id: heading }, title), status, ...body, bar, problem, make("div", { class: "buttons" }, yes, no));
  const dialog = make("dialog", { class: "ask", "aria-labelledby": heading,
    click: (event) => { if (event.target === dialog) stop(); },
    cancel: (event) => { event.preventDefault(); stop(); },
    close: () => { abort.abort(); dialog.remove(); } }, form);

  // While tasks are changed the first call stops that; otherwise it closes the dialog.
  function stop() {
    abort.abort();
    if (phase !== "acting") dialog.close();
  }

  function check() {
    mark(yes, "disabled", phase !== "ready" || !isReady() ? "" : null);
  }

  function progress({ value, max, text }) {
    show(bar, true);
    if (max) {
      bar.max = max;
      bar.value = Math.min(value, max);
    }
    say(status, text);
  }

  function failed(error) {
    const what = error.status ? `The server refused the request: ${error.message}.` : "The server does not respond.";
    const text = error.changed ? `${what} ${format.number(error.changed)} tasks were changed before.` : what;
    show(problem, true);
    say(problem, text);
    // The dialog is closed when the user has to sign in again.
    if (error.changed) announce(text);
  }

  async function run() {
    phase = "acting";
    show(problem, false);
    check();
    say(no, "Stop");
    try {
      const text = await act(abort.signal, progress);
      announce(text);
      dialog.close();
      done?.(text);
    } catch (error) {
      failed(error);
      if (isCorrected) {
        phase = "ready";
        say(no, "Cancel");
        check();
        return;
      }
      phase = "failed";
      say(no, "Close");
      done?.(null);
    }
  }

  async function begin() {
    try {
      say(status, prepare ? "Counting…" : "");
      const text = prepare ? await prepare(abort.signal, progress) : "";
      show(bar, false);
      if (text === null) {
        // Nothing to do: there is only a way out.
        phase = "empty";
        say(no, "Close");
        return;
      }
      phase = "ready";
      say(status, text);
      check();
      // A field that has to be filled keeps the focus; what cannot be undone is not confirmed by a second Enter.
      if (isReady() && !isCorrected) (danger ? no : yes).focus();
    } catch (error) {
      if (!abort.signal.aborted) failed(error);
    }
  }

  form.addEventListener("input", check);
  document.body.append(dialog);
  dialog.showModal();
  begin();
  return dialog;
}
