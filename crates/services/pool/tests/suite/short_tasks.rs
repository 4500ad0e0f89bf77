//! Many tasks that end at once, and the processes they leave.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::fixture::TestPool;

/// Few processes for each task, and users of their own so that leftovers are visible.
fn few(first_uid: u32) -> String {
    format!("limits: {{processes_max: 6}}\nisolation: {{first_uid: {first_uid}}}")
}

/// All processes of these users, including zombies.
fn counted(first: u32, count: u32) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let statuses =
        entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("status")).ok());
    let users = first..first + count;
    let of_users = statuses.filter(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        let user = line.and_then(|line| line.split_whitespace().next()?.parse::<u32>().ok());
        user.is_some_and(|user| users.contains(&user))
    });
    of_users.collect()
}

/// Polls until these users have no process any more.
async fn until_uncounted(first: u32, count: u32) {
    let given_up = Instant::now() + Duration::from_secs(60);
    loop {
        let left = counted(first, count);
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < given_up, "{left:?}");
        tokio::task::yield_now().await;
    }
}

/// Each program left a zombie that the machine's init process reaped late, and all of them counted towards the
/// process limit of the user: of many short tasks in a row a fifth could not be started.
#[tokio::test]
async fn hundreds_of_short_tasks_all_start() {
    let site = TestPool::new(2, &few(61_000)).await;
    for round in 0..200 {
        let answer = site.run("echo x > result.txt").await;
        assert!(answer["ok"].is_object(), "round {round}: {answer}");
    }
    assert_eq!(site.status().await.counts.requeued, 0, "each began at once");
    site.until_empty().await;
    site.stop().await;
    if let Some(first) = site.pool.backends().isolation().first_uid() {
        until_uncounted(first, 4).await;
    }
}

/// Killed programs leave zombies to the pool, which reaps them before the user is free.
#[tokio::test]
async fn clients_that_leave_take_no_processes_from_later_tasks() {
    let site = TestPool::new(2, &few(61_020)).await;
    for round in 0..60 {
        let mut client = site.start("{}", "sleep 1000 & exec sleep 1000").await;
        if round % 2 == 0 {
            client.until("output").await;
        }
        drop(client);
    }
    for round in 0..20 {
        let answer = site.run("true | true; echo x > result.txt").await;
        assert!(answer["ok"].is_object(), "round {round}: {answer}");
    }
    site.until_empty().await;
    site.stop().await;
    if let Some(first) = site.pool.backends().isolation().first_uid() {
        until_uncounted(first, 4).await;
    }
}

/// A sandbox that cannot be started is reported as such.
#[tokio::test]
async fn a_sandbox_that_cannot_start_is_reported() {
    // A link that cannot be created inside.
    let site = TestPool::new(1, "  walled: {command: [/bin/true], read: [/proc/self]}\n").await;
    if !site.has_bubblewrap() {
        return;
    }
    let file = json!({ "filename": "a.sh", "text": "" });
    let (_, answer) = site.post_to("walled", json!({ "input": [file] })).await;
    assert_eq!(answer["error"]["error"], "the program could not be started", "{answer}");
    assert_eq!(site.status().await.counts.requeued, 2, "it was tried again first");
    site.until_empty().await;
}

/// With too little memory a program starts and reports the error itself.
#[tokio::test]
async fn too_little_memory_is_reported_by_the_program() {
    let site = TestPool::new(1, "limits: {memory_bytes_max: 1000000}").await;
    if !site.has_bubblewrap() {
        return;
    }
    let answer = site.run("true").await;
    assert_eq!(answer["error"]["error"], "the program exited with status 127", "{answer}");
    assert_eq!(site.status().await.counts.requeued, 0);
}
