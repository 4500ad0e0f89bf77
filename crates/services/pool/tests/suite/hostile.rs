//! Malicious programs and clients.

use rustix::fs::{Gid, Uid};
use rustix::process::geteuid;
use rustix::thread::{set_thread_gid, set_thread_uid};
use serde_json::{Value, json};
use taskyard_testkit::recorded_output::keep_log;
use taskyard_testkit::skipped::skip;

use crate::fixture::{TestPool, until_gone};

/// Why a test of the users of programs is skipped.
const NOT_ROOT: &str = "only root gives programs users of their own";

fn output(answer: &Value) -> String {
    let result = if answer["ok"].is_object() { &answer["ok"] } else { &answer["error"] };
    let pieces = result["output"].as_array().unwrap();
    pieces.iter().filter_map(|piece| piece["text"].as_str()).collect()
}

#[tokio::test]
async fn names_outside_the_folder_are_refused() {
    let site = TestPool::new(1, "").await;
    for name in ["../a.sh", "/tmp/a.sh", "a/b.sh", ".sh", "..sh", "-c.sh", "a\u{0}.sh", "a.asy"] {
        let file = json!({ "filename": name, "text": "true" });
        let (status, answer) = site.post(json!({ "input": [file] })).await;
        assert_eq!(status, 400, "{name:?}: {answer}");
    }
    assert_eq!(site.status().await.counts.arrived, 0);
}

#[tokio::test]
async fn a_link_instead_of_a_result_is_not_followed() {
    let site = TestPool::new(1, "").await;
    for script in [
        "ln -s /etc/passwd result.txt",
        "echo secret > other; ln -s other result.txt",
        "echo secret > other; ln other result.txt",
        "mkfifo result.txt",
        "mkdir result.txt",
    ] {
        let answer = site.run(script).await;
        let error = answer["error"]["error"].as_str().unwrap_or_default();
        assert!(error.starts_with("cannot read the result"), "{script}: {answer}");
        assert!(answer["error"]["result"].is_null(), "{script}");
    }
    site.until_empty().await;
}

#[tokio::test]
async fn the_environment_of_the_pool_is_not_visible() {
    let site = TestPool::new(1, "").await;
    let seen = output(&site.run("env").await);
    let mut names: Vec<_> = seen.lines().filter_map(|line| line.split('=').next()).collect();
    names.sort_unstable();
    assert_eq!(names, ["HOME", "LANG", "PATH", "PWD", "TMPDIR"]);
}

#[tokio::test]
async fn the_machine_is_not_visible() {
    let site = TestPool::new(1, "").await;
    let isolation = site.pool.backends().isolation();
    if !site.has_bubblewrap() {
        assert!(isolation.gaps().iter().any(|gap| gap.contains("`sandbox: none`")));
        return;
    }
    let answer = site.run("cat /etc/passwd; ls /home /root /proc/1/root/etc; ls /tmp").await;
    let seen = output(&answer);
    assert!(!seen.contains("root:"), "{seen}");
    assert!(seen.contains("/etc/passwd: No such file"), "{seen}");
    // Only the loopback device exists, without any connection.
    let seen = output(&site.run("cat /proc/net/dev | tail -n +3 | cut -d: -f1").await);
    assert_eq!(seen.trim(), "lo");
    let seen = output(&site.run("touch /usr/x /x; echo $?").await);
    assert!(seen.contains("1\n") && seen.contains("'/x': Read-only"), "{seen}");
}

#[tokio::test]
async fn programs_are_never_root() {
    let site = TestPool::new(1, "").await;
    if site.pool.backends().isolation().first_uid().is_none() {
        let gaps = site.pool.backends().isolation().gaps();
        assert!(gaps.iter().any(|gap| gap.contains("user of the pool")));
        return skip(NOT_ROOT);
    }
    let seen = output(&site.run("id -u; id -G; cat /proc/self/status | grep CapEff").await);
    let mut lines = seen.lines();
    let uid = lines.next().unwrap();
    assert!(uid.parse::<u32>().unwrap() >= 60_600, "{seen}");
    assert_eq!(lines.next(), Some(uid));
    assert!(seen.contains("0000000000000000"), "{seen}");
}

/// Users of its own, so that processes of other tests are not mistaken for its leftovers.
const BOMB: &str = "limits: {processes_max: 40}\nisolation: {first_uid: 60920}";

/// A pool that runs as root starts a fork bomb: the process limit must contain it.
#[tokio::test]
async fn a_fork_bomb_is_contained_and_leaves_nothing() {
    let site = TestPool::new(2, BOMB).await;
    let isolation = site.pool.backends().isolation();
    let Some(first) = isolation.first_uid() else {
        assert!(isolation.gaps().iter().any(|gap| gap.contains("is not limited")));
        return skip(NOT_ROOT);
    };
    let script = "bomb() { bomb | bomb & }; bomb; sleep 1000";
    let mut bomb = site.start(r#"{"duration": 1}"#, script).await;
    bomb.until("output").await;
    // Other tasks are not affected.
    assert!(site.run("echo x > result.txt").await["ok"].is_object());
    let end = bomb.until("complete").await;
    assert_ne!(end.error(), "");
    site.until_empty().await;
    site.stop().await;
    until_gone(first..first + 4).await;
}

/// A process that leaves its process group is killed too.
#[tokio::test]
async fn a_process_that_hides_is_killed_with_its_task() {
    for isolation in
        ["isolation: {first_uid: 60900}", "sandbox: none\nisolation: {first_uid: 60910}"]
    {
        let site = TestPool::new(1, isolation).await;
        let Some(first) = site.pool.backends().isolation().first_uid() else {
            return skip(NOT_ROOT);
        };
        let script = "setsid sleep 1000 >/dev/null 2>&1 & echo x > result.txt";
        assert!(site.run(script).await["ok"].is_object());
        site.until_empty().await;
        site.stop().await;
        until_gone(first..first + 2).await;
    }
}

/// If the pool was not root, clients that left at once filled the machine: each left a bubblewrap that was killed
/// before its child was bound to it.
#[test]
fn clients_that_leave_at_once_leave_no_processes_if_the_pool_is_not_root() {
    // The user of the pool cannot open the file.
    keep_log();
    // A user of its own, so that leftovers are visible.
    let user = 1_000_000 + std::process::id();
    let pool = move || {
        if geteuid().is_root() {
            // For this thread and its children.
            set_thread_gid(Gid::from_raw(user)).unwrap();
            set_thread_uid(Uid::from_raw(user)).unwrap();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async {
            let site = TestPool::new(4, "").await;
            assert_eq!(site.pool.backends().isolation().first_uid(), None);
            for round in 0..40 {
                let mut client = site.start("{}", "exec sleep 1000").await;
                if round % 2 == 0 {
                    client.until("output").await;
                }
            }
            site.until_empty().await;
            site.stop().await;
        });
    };
    std::thread::spawn(pool).join().unwrap();
    if geteuid().is_root() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(until_gone(user..user + 1));
    }
}

#[tokio::test]
async fn memory_and_files_have_limits() {
    let site =
        TestPool::new(1, "limits: {memory_bytes_max: 200000000, file_bytes_max: 100000}").await;
    let answer = site.run("head -c 1000000 /dev/zero > result.txt; wc -c < result.txt").await;
    assert!(output(&answer).contains("100000\n"), "{answer}");
    let answer = site.run("dd if=/dev/zero of=/dev/null bs=400M count=1; echo status $?").await;
    assert!(output(&answer).contains("status 1"), "{answer}");
}

/// The folder of devices was in memory without a size limit: a program could fill half of the machine's memory.
#[tokio::test]
async fn folders_in_memory_have_a_size_limit() {
    let site = TestPool::new(1, "limits: {file_bytes_max: 200000000}").await;
    if !site.has_bubblewrap() {
        return;
    }
    let seen = output(&site.run("echo x > /dev/b").await);
    assert!(seen.contains("/dev/b: Read-only"), "{seen}");
    for folder in ["/tmp", "/dev/shm"] {
        let script = format!("head -c 100000000 /dev/zero > {folder}/a; wc -c < {folder}/a");
        let seen = output(&site.run(&script).await);
        let isolation = site.pool.backends().isolation();
        let size = if isolation.has_control_groups() { "67108864" } else { "33554432" };
        assert!(seen.contains("No space left") && seen.contains(size), "{seen}");
    }
    let seen = output(&site.run("echo x > /dev/null && head -c 3 /dev/urandom | wc -c").await);
    assert_eq!(seen, "3\n");
}

/// Each file and each process is within its limit, and there are more and more of them.
#[tokio::test]
async fn the_total_usage_of_a_task_is_limited() {
    let more = "limits: {task_disk_bytes_max: 5000000, task_files_max: 200, \
                task_memory_bytes_max: 100000000}";
    let site = TestPool::new(1, more).await;
    for (script, expected) in [
        ("i=0; while :; do i=$((i+1)); head -c 500000 /dev/zero > f$i; done", "disk limit"),
        ("mkdir d; i=0; while :; do i=$((i+1)); : > d/f$i; done", "too many files"),
        // A line without an end is kept in memory.
        (
            "for i in 1 2 3 4 5 6; do (head -c 30000000 /dev/zero; sleep 1000) | tail & done; wait",
            "memory limit",
        ),
    ] {
        let mut client = site.start(r#"{"duration": 30}"#, script).await;
        let end = client.until("complete").await;
        assert!(end.error().starts_with(expected), "{end:?}");
        site.until_empty().await;
    }
}

/// Nested folders crashed the whole server when they were removed, and evaded the limits.
#[tokio::test]
async fn nested_folders_end_only_their_own_task() {
    let site = TestPool::new(1, "").await;
    let script = r#"exec perl -e 'for (1..3000) { mkdir "d"; chdir "d" } sleep 1000'"#;
    let mut client = site.start(r#"{"duration": 30}"#, script).await;
    let end = client.until("complete").await;
    assert!(end.error().starts_with("too many files"), "{end:?}");
    assert!(site.run("echo x > result.txt").await["ok"].is_object());
    site.until_empty().await;
}

#[tokio::test]
async fn the_total_usage_of_all_tasks_is_limited_and_the_largest_ends() {
    let classes = "classes: [{name: one, seconds: 300, limit: 100%}]";
    let site =
        TestPool::new(2, &format!("limits: {{pool_disk_bytes_max: 9000000}}\n{classes}")).await;
    let write = |size: u32| format!("head -c {size} /dev/zero > f; echo up; exec sleep 1000");
    let mut small = site.start("{}", &write(4_000_000)).await;
    small.until_output("up").await;
    let mut large = site.start("{}", &write(6_000_000)).await;
    let end = large.until("complete").await;
    assert!(end.error().starts_with("disk limit of all tasks together"), "{end:?}");
    assert_eq!(site.status().await.running, 1);
}

#[tokio::test]
async fn the_input_of_all_clients_together_is_limited() {
    let site = TestPool::new(1, "limits: {held_bytes_max: 20480}").await;
    let mut first = site.client().await;
    first.file("a.sh", &"#".repeat(15_000)).await;
    let mut second = site.client().await;
    second.file("a.sh", &"#".repeat(15_000)).await;
    // The second client is refused, also over plain HTTP, and the first continues.
    let expected = "input buffer full; try again later";
    let refused = tokio::select! {
        frame = first.until("deny") => frame,
        frame = second.until("deny") => frame,
    };
    assert_eq!(refused.error(), expected);
    let file = json!({ "filename": "a.sh", "text": "#".repeat(15_000) });
    let (status, answer) = site.post(json!({ "input": [file] })).await;
    assert_eq!((status, answer["error"]["error"].as_str()), (503, Some(expected)));
    drop((first, second));
    // The memory is free again as soon as they are gone.
    let big = format!("{}\necho x > result.txt", "#".repeat(10_000));
    while site.run(&big).await["ok"].is_null() {}
}
