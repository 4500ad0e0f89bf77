//! Writes the answer to a call in the shape that the client asked for.

use taskyard_core::{Body, SemaphoreReply, SessionId, State, TaskId, TubeName, TubeStats};

use super::greeting::{self, VERSION};
use super::pack::{self, Out};
use super::reply::{Shape, write_ok};
use super::semaphores;

/// The answer to a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer<'a> {
    /// No result at all.
    Nothing,
    /// One result, nil.
    Nil,
    /// One task.
    Task {
        /// Its id.
        id: TaskId,
        /// Its state.
        state: State,
        /// Its payload, MessagePack; empty stands for nil.
        data: &'a [u8],
    },
    /// A list of tasks.
    Tasks(Vec<(TaskId, State, Option<Body>)>),
    /// Two results: a list of tasks, and the last id of the page if tasks follow.
    TaskPage {
        /// The tasks.
        tasks: Vec<(TaskId, State, Option<Body>)>,
        /// Where the next page begins; nil if no task follows.
        next: Option<TaskId>,
    },
    /// A number.
    Number(i64),
    /// Text.
    Text(&'a str),
    /// True or false.
    Flag(bool),
    /// The identity of a session.
    Session(SessionId),
    /// The statistics of one tube.
    Stats(&'a TubeStats),
    /// The statistics of all tubes.
    AllStats(&'a [(TubeName, TubeStats)]),
    /// The names of tubes.
    Names(&'a [TubeName]),
    /// The reply of a semaphore.
    Semaphore(&'a SemaphoreReply),
    /// `box.info`: what is known of the server.
    Info {
        /// Its identity, as in the greeting.
        instance: [u8; 16],
        /// The number of its process.
        pid: u32,
        /// How long it has been running, in seconds.
        uptime: u64,
    },
}

/// Writes the reply with this answer.
pub fn write_answer(out: &mut Vec<u8>, sync: u64, shape: Shape, answer: &Answer<'_>) {
    write_ok(out, sync, |out| {
        if matches!(answer, Answer::Nothing) {
            return pack::array32(out, 0);
        }
        // The old shape turns each tuple of a list into a row, and an empty list into one empty
        // row.
        if let (Shape::Call16, Answer::Tasks(tasks)) = (shape, answer)
            && !tasks.is_empty()
        {
            pack::array32(out, tasks.len());
            return write_tasks(out, tasks);
        }
        if let (Shape::Call16, Answer::Semaphore(reply)) = (shape, answer)
            && let Some(write) = semaphores::rows(reply)
        {
            return write(out);
        }
        if let Answer::TaskPage { tasks, next } = answer {
            return write_page(out, shape, tasks, *next);
        }
        pack::array32(out, 1);
        // The old shape puts each result into a list, unless it is one.
        if shape == Shape::Call16 && !is_list(answer) {
            pack::array(out, 1);
        }
        write_value(out, answer);
    });
}

const fn is_list(answer: &Answer<'_>) -> bool {
    match answer {
        Answer::Task { .. } | Answer::Tasks(_) | Answer::Names(_) => true,
        Answer::Semaphore(reply) => semaphores::is_list(reply),
        _ => false,
    }
}

fn write_value(out: &mut Out, answer: &Answer<'_>) {
    match answer {
        Answer::Nothing | Answer::TaskPage { .. } => {}
        Answer::Nil => pack::nil(out),
        Answer::Task { id, state, data } => write_task(out, *id, *state, data),
        Answer::Tasks(tasks) => {
            pack::array(out, tasks.len());
            write_tasks(out, tasks);
        }
        Answer::Number(number) => pack::int(out, *number),
        Answer::Text(text) => pack::str(out, text),
        Answer::Flag(flag) => pack::bool(out, *flag),
        Answer::Session(session) => pack::str_bytes(out, &session.0),
        Answer::Stats(stats) => write_stats(out, stats),
        Answer::AllStats(all) => {
            pack::map(out, all.len());
            for (tube, stats) in *all {
                pack::str(out, tube.as_str());
                write_stats(out, stats);
            }
        }
        Answer::Semaphore(reply) => semaphores::write(out, reply),
        Answer::Info { instance, pid, uptime } => write_info(out, *instance, *pid, *uptime),
        Answer::Names(names) => {
            pack::array(out, names.len());
            names.iter().for_each(|name| pack::str(out, name.as_str()));
        }
    }
}

/// The only answer with two results.
fn write_page(
    out: &mut Out,
    shape: Shape,
    tasks: &[(TaskId, State, Option<Body>)],
    next: Option<TaskId>,
) {
    pack::array32(out, 2);
    pack::array(out, tasks.len());
    write_tasks(out, tasks);
    if shape == Shape::Call16 {
        pack::array(out, 1);
    }
    match next {
        Some(id) => pack::uint(out, id.0),
        None => pack::nil(out),
    }
}

fn write_tasks(out: &mut Out, tasks: &[(TaskId, State, Option<Body>)]) {
    for (id, state, body) in tasks {
        write_task(out, *id, *state, body.as_ref().map_or(&[], Body::payload));
    }
}

fn write_task(out: &mut Out, id: TaskId, state: State, data: &[u8]) {
    pack::array(out, 3);
    pack::uint(out, id.0);
    // Every state's letter is ASCII: text of one byte.
    out.extend_from_slice(&[0xa1, state.letter() as u8]);
    if data.is_empty() {
        pack::nil(out);
    } else {
        out.extend_from_slice(data);
    }
}

/// The part of `box.info` that has a meaning here. Connection pools use a server that is `running`
/// and not `ro`.
fn write_info(out: &mut Out, instance: [u8; 16], pid: u32, uptime: u64) {
    pack::map(out, 8);
    let uuid = greeting::identity(instance);
    for (name, text) in [("version", VERSION), ("uuid", &uuid), ("status", "running")] {
        pack::str(out, name);
        pack::str(out, text);
    }
    for (name, number) in [("id", 1), ("lsn", 0), ("pid", pid.into()), ("uptime", uptime)] {
        pack::str(out, name);
        pack::uint(out, number);
    }
    pack::str(out, "ro");
    pack::bool(out, false);
}

fn write_stats(out: &mut Out, stats: &TubeStats) {
    let tasks = &stats.tasks;
    pack::map(out, 2);
    pack::str(out, "tasks");
    let counts = [
        ("ready", tasks.ready),
        ("taken", tasks.taken),
        ("buried", tasks.buried),
        ("delayed", tasks.delayed),
        ("done", tasks.done),
        ("total", tasks.total()),
    ];
    write_counts(out, &counts);
    pack::str(out, "calls");
    write_counts(out, &stats.calls.named());
}

fn write_counts(out: &mut Out, counts: &[(&str, u64)]) {
    pack::map(out, counts.len());
    for (name, count) in counts {
        pack::str(out, name);
        pack::uint(out, *count);
    }
}
