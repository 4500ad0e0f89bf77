// The dialog that creates or changes a schedule.

import { parseJson, setSchedule } from "./api.js";
import { ask } from "./dialog.js";
import { make } from "./dom.js";

// What happens with times that were missed, and while the task of an earlier time exists.
export const CATCH_UP = { none: "are skipped", last: "the last one fires", all: "all fire, at most 1,000" };
export const OVERLAP = { allow: "fires", skip: "is skipped" };

const field = (label, control) => make("label", { class: "field" }, make("span", {}, label), control);
const input = (name, value, attributes = {}) =>
  make("input", { name, autocomplete: "off", spellcheck: "false", value: value ?? "", ...attributes });

function choice(name, options, chosen) {
  const select = make("select", { name }, ...Object.entries(options).map(([value, text]) => make("option", { value }, text)));
  select.value = chosen;
  return select;
}

// The JSON of a text, undefined if it is none.
function json(text) {
  try {
    return parseJson(text);
  } catch {
    return undefined;
  }
}

// The fields of a new schedule, or of one that exists. A payload that JSON cannot represent stays as it is.
function fieldsOf(found) {
  const hasJson = !found || found.task.data !== undefined;
  const name = input("name", found?.name, { maxlength: "128", required: "", readonly: found ? "" : null });
  const tube = input("tube", found?.tube, { maxlength: "128", required: "" });
  const cron = input("cron", found?.cron, { placeholder: "0 9 * * 1-5" });
  const zone = input("zone", found?.zone, { placeholder: "UTC" });
  const every = input("every", found?.every, { type: "number", min: "1", step: "any" });
  const catchUp = choice("catch_up", CATCH_UP, found?.catch_up ?? "none");
  const overlap = choice("overlap", OVERLAP, found?.overlap ?? "allow");
  const data = make("textarea", { name: "data", rows: "4", spellcheck: "false" });
  data.value = hasJson ? JSON.stringify(found?.task.data ?? {}, null, 2) : "";
  const body = [
    make("div", { class: "fields" }, field("Name", name), field("Tube, which exists", tube)),
    make("div", { class: "fields" }, field("Cron: minute hour day month weekday", cron), field("Time zone", zone), field("or every … seconds", every)),
    make("div", { class: "fields" }, field("Times that were missed", catchUp), field("While an earlier task exists", overlap)),
    hasJson ? field("Payload of the task, as JSON", data) : make("p", { class: "note" }, "The payload is no JSON and stays as it is."),
  ];
  return {
    body,
    name: () => name.value.trim(),
    isReady: () => name.value.trim() !== "" && tube.value.trim() !== "" && (cron.value.trim() !== "") !== (every.value !== "")
      && (!hasJson || json(data.value) !== undefined),
    // The schedule as a request.
    request() {
      const times = every.value === "" ? { cron: cron.value.trim(), zone: zone.value.trim() || undefined }
        : { every: Number(every.value), start: found?.start };
      const task = hasJson ? { ...found?.task, data: json(data.value) } : found.task;
      return { tube: tube.value.trim(), task, ...times, catch_up: catchUp.value, overlap: overlap.value, until: found?.until, only_new: !found };
    },
  };
}

// Opens the dialog for a schedule that exists, or for a new one; `done` gets the name when it was set.
export function editSchedule(found, done) {
  const fields = fieldsOf(found);
  ask({
    title: found ? `Change ${found.name}` : "New schedule",
    confirm: found ? "Save" : "Create",
    body: fields.body,
    isReady: fields.isReady,
    isCorrected: true,
    act: async () => {
      await setSchedule(fields.name(), fields.request());
      return found ? `Changed ${found.name}` : `Created ${fields.name()}`;
    },
    done: (text) => text && done(fields.name()),
  });
}
