//! A sandbox ends at whatever step of its start the pool or bubblewrap is killed.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::cmsg_space;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::json;
use taskyard_testkit::random::{new_seed, runs};
use taskyard_testkit::skipped::skip;

use crate::fixture::{TestPool, processes};

const INIT: &str = env!("CARGO_BIN_EXE_taskyard-pool-sandbox-init");
const STEPS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sandbox_end/steps.pl");
/// The number of the system call `ptrace`.
const PTRACE: &str = if cfg!(target_arch = "x86_64") { "101" } else { "117" };
const PATIENCE: Duration = Duration::from_secs(60);
/// Exit status of the helper: it has reached the step.
const THERE: Option<i32> = Some(0);

/// The arguments of live processes that name this folder or one inside, by process id.
fn marked_processes(folder: &Path) -> Vec<(Pid, Vec<String>)> {
    let folder = folder.to_str().unwrap();
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let found = all.filter_map(|entry| {
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        let cmdline = std::fs::read(entry.path().join("cmdline")).ok()?;
        let cmdline = String::from_utf8_lossy(&cmdline).into_owned();
        let args = cmdline.split_terminator('\0').map(String::from).collect();
        cmdline.contains(folder).then(|| Some((Pid::from_raw(number)?, args)))?
    });
    found.collect()
}

/// Polls until no process has the mark.
fn until_none(folder: &Path, when: &str) {
    let given_up = Instant::now() + PATIENCE;
    loop {
        let left = marked_processes(folder);
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < given_up, "{when}: {left:?}");
        std::thread::yield_now();
    }
}

/// The arguments with which a pool starts bubblewrap, and the folder in them.
async fn arguments(site: &TestPool) -> (Vec<String>, String) {
    let base = site.pool.backends().folder();
    loop {
        let found = marked_processes(base).into_iter().find(|(_, args)| args[0].ends_with("bwrap"));
        if let Some((_, args)) = found {
            let folder = args.last().unwrap().clone();
            return (args, folder);
        }
        tokio::task::yield_now().await;
    }
}

/// Sends a request that is not read yet: a program that never ends by itself.
fn send_request(socket: &UnixStream, folder: &str) {
    let limits = json!({ "memory": 1 << 30, "file": 1 << 20, "processes": null, "cpu": null });
    let command = ["/bin/sh", "-c", "sleep 1000; true", folder];
    let body = json!({ "command": command, "limits": limits }).to_string();
    let head = (body.len() as u32).to_be_bytes();
    let output = std::fs::File::options().write(true).open("/dev/null").unwrap();
    let streams = [output.as_fd()];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&streams)));
    let bytes = [&head[..], body.as_bytes()].concat();
    let sent = sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
    assert_eq!(sent.unwrap(), bytes.len());
}

/// Kills a pool when the start has reached this step. Returns the exit status of the helper.
fn kill_at_step(args: &[String], folder: &str, uid: u32, whom: &str, steps: usize) -> Option<i32> {
    let (own, other) = UnixStream::pair().unwrap();
    send_request(&own, folder);
    let mut helper = Command::new("/usr/bin/perl");
    helper.args([STEPS, PTRACE, INIT, whom, &steps.to_string()]).args(args);
    helper.stdin(OwnedFd::from(own)).stdout(OwnedFd::from(other)).stderr(Stdio::piped());
    helper.current_dir(folder).process_group(0);
    if geteuid().is_root() {
        helper.uid(uid).gid(uid);
    }
    let child = helper.spawn().unwrap();
    drop(helper);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(matches!(output.status.code(), Some(0 | 7 | 8)), "{:?}: {stderr}", output.status);
    output.status.code()
}

/// Chooses other steps in each run, unless `TASKYARD_SEED` is set. A failure prints the seed.
fn random_steps() -> fastrand::Rng {
    fastrand::Rng::with_seed(new_seed())
}

/// A pool was killed just when the outer process of bubblewrap had requested to die with it, and the inner one had
/// not: that one waited forever for a message of the outer one. A pool that had sent its request already left the
/// program running.
#[tokio::test]
async fn a_pool_that_is_killed_at_any_step_of_a_start_leaves_nothing() {
    let site = TestPool::new(1, "isolation: {first_uid: 61200}").await;
    if !site.has_bubblewrap() {
        return;
    }
    let uid = 61_290;
    let (mut args, theirs) = arguments(&site).await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    if geteuid().is_root() {
        chown(folder.path(), Some(uid), Some(uid)).unwrap();
    }
    let own = folder.path().to_str().unwrap().to_owned();
    args.iter_mut().filter(|arg| **arg == theirs).for_each(|arg| arg.clone_from(&own));
    drop(site);
    let mut chance = random_steps();
    for (whom, stride, least) in [("first", 97, 98), ("outer", 1, 10), ("inner", 29, 262)] {
        // Every step is tried by `xtask storm`, and some others in each usual run.
        let stride = if runs() > 1 { 1 } else { stride };
        let mut steps = chance.usize(0..stride);
        println!("{whom}: from step {steps}, every {stride}");
        loop {
            let ended = kill_at_step(&args, &own, uid, whom, steps);
            until_none(folder.path(), &format!("{whom}, step {steps}"));
            if ended != THERE {
                break;
            }
            steps += stride;
        }
        assert!(steps >= least, "{whom}: only {steps} steps");
    }
}

/// The same with a pool that lives: its task gets another sandbox, and nothing is left of the first.
#[tokio::test]
async fn bubblewrap_that_is_killed_at_any_moment_leaves_nothing() {
    let site = TestPool::new(1, "isolation: {first_uid: 61210}").await;
    if !site.has_bubblewrap() {
        return;
    }
    let base = site.pool.backends().folder().to_owned();
    let mut killed = 0;
    for round in 0..30 {
        // If all users are still taken, there is no ready sandbox.
        let mut found = None;
        for _ in 0..100 {
            let outer = |(_, args): &(Pid, Vec<String>)| args[0].ends_with("bwrap");
            found = marked_processes(&base).into_iter().find(outer);
            if found.is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
        for _ in 0..round * 20 {
            tokio::task::yield_now().await;
        }
        if let Some((outer, _)) = found {
            // It may have ended meanwhile.
            let _ = kill_process(outer, Signal::KILL);
            killed += 1;
        }
        let answer = site.run("echo x > result.txt").await;
        assert!(answer["ok"].is_object(), "round {round}: {answer}");
    }
    assert!(killed > 0);
    site.until_empty().await;
    site.stop().await;
    until_none(&base, "after the pool");
    if let Some(first) = site.pool.backends().isolation().first_uid() {
        assert_eq!((first..first + 2).flat_map(processes).next(), None);
    }
}

/// A process that a killed pool had left kept its user forever; the next pool with that user saw it as its own.
#[tokio::test]
async fn processes_of_an_earlier_pool_end_when_their_users_are_claimed() {
    if !geteuid().is_root() {
        return skip("only root may start processes of other users");
    }
    let mut left = Command::new("/bin/sleep");
    let mut left = left.arg("1000").uid(61_221).gid(61_221).spawn().unwrap();
    let site = TestPool::new(1, "isolation: {first_uid: 61220}").await;
    if site.pool.backends().isolation().first_uid() == Some(61_220) {
        assert_eq!(left.try_wait().unwrap().map(|status| status.code()), Some(None), "by a signal");
    }
    let _ = left.kill();
    left.wait().unwrap();
}
