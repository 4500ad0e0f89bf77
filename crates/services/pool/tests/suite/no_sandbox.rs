//! Machines on which programs cannot be sandboxed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use taskyard_pool::{Config, Pool};

use crate::fixture::{PROGRAMS, TestPool, enable_sandboxes};

/// Why a pool with this bubblewrap does not start.
async fn refusal(bubblewrap: &Path) -> String {
    let isolation = format!("isolation: {{bubblewrap: '{}'}}", bubblewrap.display());
    let config = Config::parse(&format!("backends: 1\n{PROGRAMS}{isolation}")).unwrap();
    // Nothing here depends on whether bubblewrap works.
    let _: Config = enable_sandboxes(&config);
    Pool::start(config).await.unwrap_err().to_string()
}

/// A script in place of bubblewrap.
fn script(folder: &Path, text: &str) -> PathBuf {
    // Programs have users of their own.
    fs::set_permissions(folder, PermissionsExt::from_mode(0o755)).unwrap();
    let path = folder.join("bwrap");
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path
}

/// Such a pool started with a warning in its log, and every program could read the files of the machine.
#[tokio::test]
async fn a_pool_without_a_working_sandbox_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let error = refusal(&folder.path().join("nowhere")).await;
    assert!(error.contains("nowhere does not exist; install bubblewrap"), "{error}");
    assert!(error.contains("write `sandbox: none` in the file"), "{error}");
    let error = refusal(&script(folder.path(), "echo no namespaces here >&2; exit 1")).await;
    assert!(error.contains("could not be run in bubblewrap: no namespaces here;"), "{error}");
    assert!(error.contains("allow unprivileged user namespaces"), "{error}");
    assert!(error.contains("write `sandbox: none` in the file"), "{error}");
    // It runs the program, and nothing surrounds it.
    let open = "while [ \"$1\" != -- ]; do shift; done; shift; exec \"$@\"";
    let error = refusal(&script(folder.path(), open)).await;
    assert!(error.contains("a program in bubblewrap is not isolated: PPid is "), "{error}");
}

/// The option was left out after any failure, and only a debug line of the log told it.
#[tokio::test]
async fn a_bubblewrap_that_allows_nested_user_namespaces_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let old = "case \" $* \" in *--disable-userns*) echo Unknown option --disable-userns >&2; exit 1;; esac\n\
               exec /usr/bin/bwrap \"$@\"";
    let path = script(folder.path(), old);
    let site = TestPool::new(1, &format!("isolation: {{bubblewrap: '{}'}}", path.display())).await;
    if !site.has_bubblewrap() {
        return;
    }
    let isolation = site.pool.backends().isolation();
    let gaps = isolation.gaps();
    let found = gaps.iter().find(|gap| gap.contains("nested user namespaces"));
    assert!(found.is_some_and(|gap| gap.contains("Unknown option --disable-userns;")), "{gaps:?}");
    // The filter of system calls refuses them all the same.
    let answer = site.run("unshare --user true").await;
    assert!(answer["error"]["output"].to_string().contains("not permitted"), "{answer}");
}

#[tokio::test]
async fn a_pool_that_wants_no_sandbox_starts_and_says_so() {
    let site = TestPool::new(1, "sandbox: none\nisolation: {bubblewrap: /nowhere}").await;
    assert!(site.run("echo x > result.txt").await["ok"].is_object());
    // As in a shell.
    let programs = "sandbox: none\nprograms: {sh: {command: [/nowhere/at/all]}}";
    let other = TestPool::of(Config::parse(&format!("backends: 1\n{programs}")).unwrap()).await;
    let answer = other.post(serde_json::json!({ "input": [] })).await.1;
    assert_eq!(answer["error"]["error"], "the program exited with status 127", "{answer}");
    let gaps = site.pool.backends().isolation().gaps();
    assert!(gaps[0].contains("`sandbox: none`"), "{gaps:?}");
}

#[test]
fn only_known_sandboxes_and_weights_can_be_written() {
    for (more, expected) in [
        ("sandbox: docker", "docker"),
        ("sandbox: false", "sandbox"),
        // The setting that allowed a pool to start without a sandbox.
        ("isolation: {bubblewrap: false}", "bubblewrap"),
        ("isolation: {bubblewrap: bwrap}", "absolute path"),
        ("limits: {cpu_weight: 0}", "cpu_weight must be 1 to 10000"),
        ("limits: {cpu_weight: 10001}", "cpu_weight must be 1 to 10000"),
    ] {
        let error = Config::parse(&format!("{PROGRAMS}{more}")).unwrap_err().to_string();
        assert!(error.contains(expected), "{more}: {error}");
    }
}
