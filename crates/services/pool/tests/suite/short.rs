//! Many tasks that end at once, and what each leaves among the processes of its user.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::rig::Site;

/// Few processes for each task, and users of their own so that what is left can be seen.
fn few(first_uid: u32) -> String {
    format!("limits: {{processes_max: 6}}\nisolation: {{bubblewrap: true, first_uid: {first_uid}}}")
}

/// Everything that the system still counts for these users, dead or alive.
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

/// Looks until nothing is counted for these users any more.
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

/// Each program left a dead process that the machine's first one took its time to wait for, and all of them counted
/// among the processes of the user: of many short tasks in a row a fifth could not be started.
#[tokio::test]
async fn hundreds_of_short_tasks_all_begin() {
    let site = Site::new(2, &few(61_000)).await;
    for round in 0..200 {
        let answer = site.run("echo x > result.txt").await;
        assert!(answer["ok"].is_object(), "round {round}: {answer}");
    }
    assert_eq!(site.status().await.counts.put_back, 0, "each began at once");
    site.until_empty().await;
    site.stop().await;
    if let Some(first) = site.pool.backends().isolation().first_uid() {
        until_uncounted(first, 4).await;
    }
}

/// Programs that are killed leave their dead to the pool, which waits for them before the user is free.
#[tokio::test]
async fn clients_that_leave_take_no_processes_from_those_who_come() {
    let site = Site::new(2, &few(61_020)).await;
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

/// Walls that cannot be put up are told as such: nothing began.
#[tokio::test]
async fn what_cannot_begin_is_told_so() {
    // A link that cannot be made again inside.
    let site = Site::new(1, "  walled: {command: [/bin/true], read: [/proc/self]}\n").await;
    if !site.pool.backends().isolation().has_bubblewrap() {
        return;
    }
    let file = json!({ "filename": "a.sh", "text": "" });
    let (_, answer) = site.post_to("walled", json!({ "input": [file] })).await;
    assert_eq!(answer["error"]["error"], "the program could not be started", "{answer}");
    assert_eq!(site.status().await.counts.put_back, 2, "it was tried again first");
    site.until_empty().await;
}

/// With too little memory for itself a program begins, and says what it lacks.
#[tokio::test]
async fn too_little_memory_is_told_by_the_program() {
    let site = Site::new(1, "limits: {memory_bytes_max: 1000000}").await;
    if !site.pool.backends().isolation().has_bubblewrap() {
        return;
    }
    let answer = site.run("true").await;
    assert_eq!(answer["error"]["error"], "the program ended with status 127", "{answer}");
    assert_eq!(site.status().await.counts.put_back, 0);
}
