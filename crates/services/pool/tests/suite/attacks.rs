//! Attacks of programs on the machine and on other programs, each in a sandbox and, where it applies, without one.
//!
//! Where bubblewrap does not work, those in a sandbox print "skipped". A fork bomb and links in place of a result
//! are in `hostile`.

use std::fs::File;

use serde_json::Value;

use crate::fixture::{TestPool, until_gone};

/// A pool with sandboxes; `None` where they are not possible.
async fn sandboxed(more: &str) -> Option<TestPool> {
    let site = TestPool::new(1, more).await;
    if !site.pool.backends().isolation().has_bubblewrap() {
        println!("skipped: bubblewrap does not work on this machine");
        return None;
    }
    Some(site)
}

fn output(answer: &Value) -> String {
    let result = if answer["ok"].is_object() { &answer["ok"] } else { &answer["error"] };
    let pieces = result["output"].as_array().unwrap();
    pieces.iter().filter_map(|piece| piece["text"].as_str()).collect()
}

/// Runs a Perl program as the task.
async fn perl(site: &TestPool, program: &str) -> Value {
    site.run(&format!("exec perl <<'END'\n{program}\nEND\n")).await
}

/// Makes system calls, given as a name, a number and Perl expressions of the arguments, and returns a line for each with
/// its name and its error number, which is 0 for a call that succeeded.
async fn calls(site: &TestPool, calls: &[(&str, libc::c_long, &str)]) -> String {
    let mut program = String::from("$| = 1; my $buffer = \"\\0\" x 256;\n");
    for (name, number, arguments) in calls {
        program.push_str(&format!(
            "@a = ({arguments}); $! = 0; $r = syscall({number}, @a); print \"{name} \", ($r == -1 ? $!+0 : 0), \"\\n\";\n"
        ));
    }
    output(&perl(site, &program).await)
}

fn lines(calls: &[(&str, libc::c_long, &str)], error: i32) -> String {
    calls.iter().map(|(name, ..)| format!("{name} {error}\n")).collect()
}

const NAMESPACES: [(&str, libc::c_long, &str); 8] = [
    ("unshare-user", libc::SYS_unshare, "0x10000000"),
    ("unshare-user-and-mounts", libc::SYS_unshare, "0x10020000"),
    ("unshare-time", libc::SYS_unshare, "0x80"),
    ("setns", libc::SYS_setns, "0, 0"),
    ("clone-user", libc::SYS_clone, "0x10000011, 0, 0, 0, 0"),
    ("clone-pids", libc::SYS_clone, "0x20000011, 0, 0, 0, 0"),
    ("clone-mounts", libc::SYS_clone, "0x00020011, 0, 0, 0, 0"),
    // The upper half of the flags is ignored by the kernel.
    ("clone-high", libc::SYS_clone, "0x7f00000010000011, 0, 0, 0, 0"),
];

const MOUNTS: [(&str, libc::c_long, &str); 8] = [
    ("mount", libc::SYS_mount, "'none', '/tmp', 'tmpfs', 0, 'size=8g'"),
    ("remount", libc::SYS_mount, "'none', '/', 'none', 0x1020, 0"),
    ("umount2", libc::SYS_umount2, "'/tmp', 0"),
    ("pivot_root", libc::SYS_pivot_root, "'/tmp', '/tmp'"),
    ("chroot", libc::SYS_chroot, "'/tmp'"),
    ("fsopen", libc::SYS_fsopen, "'tmpfs', 0"),
    ("open_tree", libc::SYS_open_tree, "-100, '/', 1"),
    ("open_by_handle_at", libc::SYS_open_by_handle_at, "-100, $buffer, 0"),
];

const PROCESSES_AND_KEYS: [(&str, libc::c_long, &str); 8] = [
    ("ptrace-traceme", libc::SYS_ptrace, "0, 0, 0, 0"),
    ("ptrace-attach", libc::SYS_ptrace, "16, getppid(), 0, 0"),
    ("process_vm_readv", libc::SYS_process_vm_readv, "getppid(), 0, 0, 0, 0, 0"),
    ("process_vm_writev", libc::SYS_process_vm_writev, "getppid(), 0, 0, 0, 0, 0"),
    ("pidfd_getfd", libc::SYS_pidfd_getfd, "0, 0, 0"),
    ("add_key", libc::SYS_add_key, "'user', 'name', 'value', 5, -4"),
    ("request_key", libc::SYS_request_key, "'user', 'name', 0, -4"),
    ("keyctl", libc::SYS_keyctl, "0, -4, 1"),
];

const KERNEL: [(&str, libc::c_long, &str); 8] = [
    ("bpf", libc::SYS_bpf, "0, $buffer, 64"),
    ("perf_event_open", libc::SYS_perf_event_open, "$buffer, 0, -1, -1, 0"),
    ("userfaultfd", libc::SYS_userfaultfd, "1"),
    ("io_uring_setup", libc::SYS_io_uring_setup, "8, $buffer"),
    ("kexec_load", libc::SYS_kexec_load, "0, 0, 0, 0"),
    ("init_module", libc::SYS_init_module, "$buffer, 0, ''"),
    ("finit_module", libc::SYS_finit_module, "0, '', 0"),
    ("syslog", libc::SYS_syslog, "3, $buffer, 64"),
];

/// A program made a user namespace, was root in it, and mounted file systems in memory without a size limit there.
#[tokio::test]
async fn namespaces_mounts_tracing_keys_and_kernel_interfaces_are_refused() {
    for kind in ["", "sandbox: none"] {
        let site = TestPool::new(1, kind).await;
        for refused in [NAMESPACES, MOUNTS, PROCESSES_AND_KEYS, KERNEL] {
            assert_eq!(calls(&site, &refused).await, lines(&refused, libc::EPERM), "{kind}");
        }
        let unknown = [("clone3", libc::SYS_clone3, "$buffer, 88")];
        assert_eq!(calls(&site, &unknown).await, lines(&unknown, libc::ENOSYS), "{kind}");
        let sockets =
            [("vsock", libc::SYS_socket, "40, 1, 0"), ("alg", libc::SYS_socket, "38, 5, 0")];
        let refused = lines(&sockets, libc::EAFNOSUPPORT);
        assert_eq!(calls(&site, &sockets).await, refused, "{kind}");
        let sockets =
            [("unix", libc::SYS_socket, "1, 1, 0"), ("inet", libc::SYS_socket, "2, 1, 0")];
        assert_eq!(calls(&site, &sockets).await, lines(&sockets, 0), "{kind}");
    }
}

#[tokio::test]
async fn programs_get_no_more_rights_and_their_calls_are_filtered() {
    for kind in ["", "sandbox: none"] {
        let site = TestPool::new(1, kind).await;
        let script = "grep -E '^(NoNewPrivs|Seccomp|CapEff):' /proc/self/status";
        let seen = output(&site.run(script).await);
        assert!(seen.contains("NoNewPrivs:\t1\n") && seen.contains("Seccomp:\t2\n"), "{seen}");
        assert!(
            site.pool.backends().isolation().first_uid().is_none()
                || seen.contains(":\t0000000000000000\n")
        );
    }
}

/// Threads and processes of ordinary programs are not affected by what is refused.
#[tokio::test]
async fn ordinary_programs_run_with_the_filter() {
    for kind in ["", "sandbox: none"] {
        let site = TestPool::new(1, kind).await;
        let script = "echo a | tr a b; (sleep 0; echo c) & wait; date > /dev/null && echo d; sort --parallel=4 <<E\nf\ne\nE";
        assert_eq!(output(&site.run(script).await), "b\nc\nd\ne\nf\n", "{kind}");
    }
}

/// Descriptors that the parent of the pool had left open were open in every program.
#[tokio::test]
async fn inherited_descriptors_are_closed() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "secret").unwrap();
    // Without the flag that closes it when a program is started.
    let inherited = rustix::io::dup(File::open(secret.path()).unwrap()).unwrap();
    for kind in ["", "sandbox: none"] {
        let site = TestPool::new(1, kind).await;
        // The shell has the script open at 10 or so, in a descriptor that `ls` does not get; 3 is the folder itself.
        let seen = output(&site.run("ls /proc/self/fd | sort -n | tr '\\n' ' '").await);
        assert_eq!(seen, "0 1 2 3 ", "{kind}");
    }
    drop(inherited);
}

#[tokio::test]
async fn other_processes_are_neither_visible_nor_reachable() {
    let Some(site) = sandboxed("").await else { return };
    let pool = std::process::id();
    let seen = output(&site.run("ls /proc | grep -E '^[0-9]+$' | wc -l").await);
    // The init process, the shell and those of the pipe.
    assert!(seen.trim().parse::<u32>().unwrap() <= 6, "{seen}");
    let script = format!(
        "for file in environ mem maps root/etc cwd/ fd/0 exe; do cat /proc/1/$file > /dev/null 2>&1 && echo read $file; done\n\
         ls /proc/1/fd /proc/1/root /proc/1/task/1/fd > /dev/null 2>&1 && echo listed\n\
         kill -0 {pool} 2>/dev/null && echo reached\n\
         echo x 2>/dev/null > /proc/sys/kernel/hostname && echo written\n\
         echo end"
    );
    assert_eq!(output(&site.run(&script).await), "end\n");
}

/// Processes that leave their parent, their session and their process group end with the task.
#[tokio::test]
async fn a_double_fork_does_not_survive_its_task() {
    for kind in ["isolation: {first_uid: 61300}", "sandbox: none\nisolation: {first_uid: 61310}"] {
        let site = TestPool::new(1, kind).await;
        let first = site.pool.backends().isolation().first_uid();
        let program = "use POSIX; $SIG{$_} = 'IGNORE' for qw(TERM HUP INT);\n\
                       for (1..3) { if (!fork) { setsid(); if (!fork) { setpgid(0, 0); chdir '/'; \
                       open STDOUT, '>/dev/null'; open STDERR, '>/dev/null'; sleep 1000; } exit } }\n\
                       wait for 1..3; open F, '>result.txt'; print F 'x'; close F;";
        assert!(perl(&site, program).await["ok"].is_object(), "{kind}");
        site.until_empty().await;
        site.stop().await;
        if let Some(first) = first {
            until_gone(first..first + 2).await;
        }
    }
}
