// Compiled, not run: the types of the package in a CommonJS program.

import { Taskyard, Worker } from "taskyard";

const client: Taskyard = new Taskyard();
new Worker<{ to: string }>(client, "mail", (task) => task.data.to.length);
