//! Attacks of programs on the machine and on other programs, each in a sandbox and, where it applies, without one.
//!
//! Where bubblewrap does not work, those in a sandbox are skipped. A fork bomb and links in place of a result
//! are in `hostile`.

use std::fs::File;

use serde_json::Value;
use taskyard_testkit::skipped::skip;

use crate::fixture::{TestPool, until_gone};

/// A pool with sandboxes; `None` where they are not possible.
async fn sandboxed(more: &str) -> Option<TestPool> {
    let site = TestPool::new(1, more).await;
    site.has_bubblewrap().then_some(site)
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

/// Starts a Perl program as a task that may use so many bytes of memory, and returns its output and its error.
async fn with_memory(site: &TestPool, program: &str) -> (String, String) {
    let script = format!("exec perl <<'END'\n{program}\nEND\n");
    let mut client = site.start(r#"{"duration": 30}"#, &script).await;
    let frames = client.rest().await;
    let bytes: Vec<u8> = frames.iter().flat_map(|frame| frame.bytes.clone()).collect();
    let error = frames.last().unwrap().error().to_owned();
    (String::from_utf8_lossy(&bytes).into_owned(), error)
}

/// Files in memory that no process maps were not counted: a task used 3 GiB of a limit of 300 MB.
#[tokio::test]
async fn three_gibibytes_of_files_in_memory_are_not_possible() {
    let Some(site) = sandboxed("limits: {task_memory_bytes_max: 300000000}").await else { return };
    let (memfd, shmget, write) = (libc::SYS_memfd_create, libc::SYS_shmget, libc::SYS_write);
    let program = format!(
        "$| = 1; my $part = 'x' x (1 << 20); my $name = 'a';\n\
         for my $file (1..52) {{ my $fd = syscall({memfd}, $name, 0);\n\
         if ($fd < 0) {{ print 'refused ', $!+0; exit }}\n\
         for (1..60) {{ my $copy = $part; syscall({write}, $fd, $copy, 1 << 20) }} }}\n\
         print 'survived'; sleep 1000;"
    );
    let (seen, error) = with_memory(&site, &program).await;
    println!("{}", site.pool.backends().isolation().memory_accounting());
    let counted = site.pool.backends().isolation().has_control_groups();
    match counted {
        true => assert!(error.starts_with("memory limit"), "{error}: {seen}"),
        false => assert_eq!(seen, format!("refused {}", libc::ENOSYS)),
    }
    // Sets of semaphores and message queues are memory of the kernel.
    let kernel_objects = [
        ("shmget", shmget, "0, 1000000, 0x380"),
        ("semget", libc::SYS_semget, "0, 32000, 0x380"),
        ("msgget", libc::SYS_msgget, "0, 0x380"),
    ];
    let expected = if counted { 0 } else { libc::ENOSYS };
    assert_eq!(calls(&site, &kernel_objects).await, lines(&kernel_objects, expected));
    site.until_empty().await;
}

/// The folders in memory were not counted.
#[tokio::test]
async fn folders_in_memory_count_as_memory_of_the_task() {
    let Some(site) = sandboxed("limits: {task_memory_bytes_max: 50000000}").await else { return };
    let script = "head -c 30000000 /dev/zero > /tmp/a; head -c 30000000 /dev/zero > /dev/shm/b; exec sleep 1000";
    let mut client = site.start(r#"{"duration": 30}"#, script).await;
    let end = client.until("complete").await;
    assert!(end.error().starts_with("memory limit"), "{end:?}");
    site.until_empty().await;
    // Each of them alone is within the limit.
    let script = "head -c 30000000 /dev/zero > /tmp/a; sleep 0.6; echo x > result.txt";
    let answer = site.run(script).await;
    assert!(answer["ok"].is_object(), "{answer}");
}

/// Empty files need memory, too.
#[tokio::test]
async fn files_without_content_count_as_memory_of_the_task() {
    let Some(site) = sandboxed("limits: {task_memory_bytes_max: 30000000}").await else { return };
    let program = "for (1..2000000) { open F, '>', \"/tmp/$_\" or last; close F } sleep 1000;";
    let (_, error) = with_memory(&site, program).await;
    assert!(error.starts_with("memory limit"), "{error}");
}

/// Pages of shared memory exist until the last mapping of any part of it is gone.
#[tokio::test]
async fn shared_memory_that_is_mostly_unmapped_is_counted() {
    let Some(site) = sandboxed("limits: {task_memory_bytes_max: 150000000}").await else { return };
    let isolation = site.pool.backends().isolation();
    if isolation.first_uid().is_none() && !isolation.has_control_groups() {
        return skip("only root may read that");
    }
    let (mmap, read, munmap) = (libc::SYS_mmap, libc::SYS_read, libc::SYS_munmap);
    let program = format!(
        "open Z, '<', '/dev/zero'; my $size = 30 << 20;\n\
         for (1..10) {{ my $at = syscall({mmap}, 0, $size, 3, 0x21, -1, 0); exit 1 if $at == -1;\n\
         syscall({read}, fileno(Z), $at, $size); syscall({munmap}, $at + 4096, $size - 4096) }}\n\
         sleep 1000;"
    );
    let (seen, error) = with_memory(&site, &program).await;
    assert!(error.starts_with("memory limit"), "{error}: {seen}");
}

/// Memory that processes shared was counted for each of them.
#[tokio::test]
async fn memory_that_processes_share_is_counted_once() {
    let Some(site) = sandboxed("limits: {task_memory_bytes_max: 200000000}").await else { return };
    let program = "my $all = 'x' x (40 << 20); for (1..8) { if (!fork) { sleep 2; exit } }\n\
                   wait for 1..8; open F, '>result.txt'; print F 'x'; close F;";
    let (seen, error) = with_memory(&site, program).await;
    assert_eq!(error, "", "{seen}");
}

/// A program that was root in a namespace of its own mounted 8 GiB of memory.
#[tokio::test]
async fn a_file_system_of_eight_gibibytes_cannot_be_mounted() {
    let Some(site) = sandboxed("").await else { return };
    let script = "for how in -Ur -Urm -Urmpf; do unshare $how mount -t tmpfs -o size=8g none /tmp; echo $how $?; done\n\
                  df -k /tmp | tail -n 1 | awk '{print ($2 < 100000) ? \"small\" : \"large\"}'";
    let seen = output(&site.run(script).await);
    for how in ["-Ur 1\n", "-Urm 1\n", "-Urmpf 1\n", "small\n"] {
        assert!(seen.contains(how), "{seen}");
    }
}
