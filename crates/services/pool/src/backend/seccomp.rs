//! The filter of system calls of programs: no namespaces, mounts, keyrings, tracing and kernel interfaces.
//!
//! The filter lists what is refused, because programs of every kind have to run. A refused call fails with an error and
//! does not end the program, except for calls of another processor architecture, whose numbers mean something else.

use std::io;

use libc::c_long;
use seccompiler::{BpfProgram, apply_filter, sock_filter};

/// The architecture that the kernel reports for calls of this one; `None` where there is no filter.
const ARCHITECTURE: Option<u32> = if cfg!(target_arch = "x86_64") {
    Some(0xc000_003e)
} else if cfg!(target_arch = "aarch64") {
    Some(0xc000_00b7)
} else {
    None
};

/// Calls that fail with `EPERM`.
const REFUSED: &[c_long] = &[
    // Namespaces; `clone` is checked by its flags.
    libc::SYS_unshare,
    libc::SYS_setns,
    // Mounts.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    OPEN_TREE_ATTR,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_open_by_handle_at,
    // Keyrings.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    // Interfaces of the kernel.
    libc::SYS_bpf,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_fanotify_init,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_vhangup,
    // The machine.
    libc::SYS_reboot,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
];
/// The same, which exist on one architecture only.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[c_long] =
    &[libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt, libc::SYS_uselib, libc::SYS__sysctl];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[c_long] = &[];
/// The number of `open_tree_attr` on every architecture.
const OPEN_TREE_ATTR: c_long = 467;
/// Calls that fail with `ENOSYS`. The flags of `clone3` are in memory, where a filter cannot read them; libraries use
/// `clone` instead.
const UNKNOWN: &[c_long] = &[libc::SYS_clone3, libc::SYS_memfd_secret];
/// The same if memory can only be counted where processes map it. Sets of semaphores and message queues are memory of the
/// kernel, of which a program could use gigabytes.
const UNCOUNTED: &[c_long] = &[
    libc::SYS_memfd_create,
    libc::SYS_shmget,
    libc::SYS_semget,
    libc::SYS_msgget,
    libc::SYS_mq_open,
];
/// Flags of `clone` for namespaces.
const NAMESPACE_FLAGS: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;
/// Address families of sockets. A network namespace does not separate some others, such as those of virtual machines.
const FAMILIES: [i32; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
/// Numbers from here on are those of the x32 interface, on x86_64.
const X32_BIT: u32 = 0x4000_0000;

/// Numbers that are compared one after the other at the end of a search.
const COMPARISONS_MAX: usize = 4;

/// Offsets in the description of a call that the kernel gives to a filter.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
/// The lower half of the first argument, on little-endian machines.
const ARGUMENT_0: u32 = 16;

/// Operations of a filter: load a word, compare and jump, return.
const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const IF_ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Installs the filter for this thread and everything it starts, none of which can get more rights afterwards.
/// `memory_files` allows memory that exists without being mapped.
pub(super) fn apply(memory_files: bool) -> io::Result<()> {
    apply_filter(&filter(memory_files)?).map_err(io::Error::other)
}

/// Whether there is a filter for this architecture.
pub(super) const fn is_supported() -> bool {
    ARCHITECTURE.is_some()
}

fn filter(memory_files: bool) -> io::Result<BpfProgram> {
    let architecture = ARCHITECTURE.ok_or_else(|| {
        let name = std::env::consts::ARCH;
        io::Error::other(format!("there is no filter of system calls for {name} processors"))
    })?;
    let mut filter = FilterBuilder::default();
    filter.push(LOAD, ARCH);
    filter.jump(IF_EQUAL, architecture, Target::Known);
    filter.push(RETURN, libc::SECCOMP_RET_KILL_PROCESS);
    filter.place(Target::Known);
    filter.push(LOAD, NUMBER);
    if cfg!(target_arch = "x86_64") {
        filter.jump(IF_AT_LEAST, X32_BIT, Target::Unknown);
    }
    filter.search(&targets(memory_files));
    filter.place(Target::Clone);
    filter.push(LOAD, ARGUMENT_0);
    filter.jump(IF_ANY_BIT, NAMESPACE_FLAGS, Target::Refuse);
    filter.push(RETURN, libc::SECCOMP_RET_ALLOW);
    filter.place(Target::Socket);
    filter.push(LOAD, ARGUMENT_0);
    for family in FAMILIES {
        filter.jump(IF_EQUAL, family as u32, Target::AllowSocket);
    }
    filter.push(RETURN, fail_with(libc::EAFNOSUPPORT));
    filter.place(Target::AllowSocket);
    filter.push(RETURN, libc::SECCOMP_RET_ALLOW);
    filter.place(Target::Refuse);
    filter.push(RETURN, fail_with(libc::EPERM));
    filter.place(Target::Unknown);
    filter.push(RETURN, fail_with(libc::ENOSYS));
    filter.finish()
}

/// Where each call that is not simply allowed continues, by its number.
fn targets(memory_files: bool) -> Vec<(u32, Target)> {
    let lists: [(&'static [c_long], Target); 6] = [
        (REFUSED, Target::Refuse),
        (REFUSED_HERE, Target::Refuse),
        (UNKNOWN, Target::Unknown),
        (if memory_files { &[] } else { UNCOUNTED }, Target::Unknown),
        (&[libc::SYS_clone], Target::Clone),
        (&[libc::SYS_socket], Target::Socket),
    ];
    let numbered = |(calls, target): (&'static [c_long], Target)| {
        calls.iter().map(move |call| (*call as u32, target))
    };
    let mut targets: Vec<(u32, Target)> = lists.into_iter().flat_map(numbered).collect();
    targets.sort_unstable_by_key(|(number, _)| *number);
    targets
}

fn fail_with(error: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | error as u32
}

/// A place in the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Known,
    /// The half of a search from this number on.
    From(u32),
    Clone,
    Socket,
    AllowSocket,
    Refuse,
    Unknown,
}

/// Resolves the jumps of a filter.
#[derive(Debug, Default)]
struct FilterBuilder {
    program: BpfProgram,
    jumps: Vec<(usize, Target)>,
    places: Vec<(Target, usize)>,
}

impl FilterBuilder {
    fn push(&mut self, code: u16, k: u32) {
        self.program.push(sock_filter { code, jt: 0, jf: 0, k });
    }

    /// Jumps forward if the comparison is true, otherwise continues.
    fn jump(&mut self, code: u16, k: u32, target: Target) {
        self.jumps.push((self.program.len(), target));
        self.push(code, k);
    }

    /// Jumps by the number of the call, and allows a call that is not listed. The list is halved until it is short:
    /// the kernel runs the filter for every number when it is installed.
    fn search(&mut self, targets: &[(u32, Target)]) {
        if targets.len() <= COMPARISONS_MAX {
            for (number, target) in targets {
                self.jump(IF_EQUAL, *number, *target);
            }
            return self.push(RETURN, libc::SECCOMP_RET_ALLOW);
        }
        let (low, high) = targets.split_at(targets.len() / 2);
        let middle = Target::From(high[0].0);
        self.jump(IF_AT_LEAST, high[0].0, middle);
        self.search(low);
        self.place(middle);
        self.search(high);
    }

    fn place(&mut self, target: Target) {
        self.places.push((target, self.program.len()));
    }

    fn finish(mut self) -> io::Result<BpfProgram> {
        for (at, target) in self.jumps {
            let to = self.places.iter().find(|(place, _)| *place == target).map(|(_, to)| *to);
            let distance = to.and_then(|to| u8::try_from(to.checked_sub(at + 1)?).ok());
            let too_far = || io::Error::other("the filter of system calls is too long");
            self.program[at].jt = distance.ok_or_else(too_far)?;
        }
        Ok(self.program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

    /// What the filter returns for a call.
    fn run(filter: &[sock_filter], architecture: u32, number: u32, argument: u32) -> u32 {
        let (mut at, mut word) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = filter[at].clone();
            let is_true = match code {
                LOAD => {
                    word = match k {
                        NUMBER => number,
                        ARCH => architecture,
                        ARGUMENT_0 => argument,
                        other => panic!("offset {other}"),
                    };
                    false
                }
                IF_EQUAL => word == k,
                IF_AT_LEAST => word >= k,
                IF_ANY_BIT => word & k != 0,
                RETURN => return k,
                other => panic!("operation {other}"),
            };
            at += 1 + usize::from(if is_true { jt } else { jf });
        }
    }

    #[test]
    fn only_listed_calls_are_refused() {
        let Some(architecture) = ARCHITECTURE else {
            assert!(filter(true).unwrap_err().to_string().contains("no filter of system calls"));
            return;
        };
        let strict = filter(false).unwrap();
        for number in UNCOUNTED {
            let refused = fail_with(libc::ENOSYS);
            assert_eq!(run(&strict, architecture, *number as u32, 0), refused, "{number}");
        }
        let filter = filter(true).unwrap();
        let call = |number: c_long, argument| run(&filter, architecture, number as u32, argument);
        for number in REFUSED.iter().chain(REFUSED_HERE) {
            assert_eq!(call(*number, 0), fail_with(libc::EPERM), "{number}");
        }
        for number in UNKNOWN {
            assert_eq!(call(*number, 0), fail_with(libc::ENOSYS), "{number}");
        }
        let special = [libc::SYS_clone, libc::SYS_socket];
        for number in 0..600 {
            let lists = [REFUSED, REFUSED_HERE, UNKNOWN, &special];
            if !lists.iter().any(|list| list.contains(&number)) {
                assert_eq!(call(number, 0), ALLOW, "{number}");
            }
        }
        let threads = libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND;
        assert_eq!(call(libc::SYS_clone, threads as u32), ALLOW);
        assert_eq!(call(libc::SYS_clone, libc::SIGCHLD as u32), ALLOW);
        for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWNET] {
            let flags = (flag | libc::SIGCHLD) as u32;
            assert_eq!(call(libc::SYS_clone, flags), fail_with(libc::EPERM), "{flag:x}");
        }
        for family in FAMILIES {
            assert_eq!(call(libc::SYS_socket, family as u32), ALLOW, "{family}");
        }
        for family in [libc::AF_VSOCK, libc::AF_ALG, libc::AF_PACKET] {
            let refused = fail_with(libc::EAFNOSUPPORT);
            assert_eq!(call(libc::SYS_socket, family as u32), refused, "{family}");
        }
    }

    /// The numbers of the 32-bit interfaces mean other calls, so they would pass.
    #[test]
    fn calls_of_other_architectures_are_not_made() {
        let (Some(architecture), Ok(filter)) = (ARCHITECTURE, filter(false)) else { return };
        let i386 = 0x4000_0003;
        assert_eq!(run(&filter, i386, 21, 0), libc::SECCOMP_RET_KILL_PROCESS);
        if cfg!(target_arch = "x86_64") {
            let mount = X32_BIT | libc::SYS_mount as u32;
            assert_eq!(run(&filter, architecture, mount, 0), fail_with(libc::ENOSYS));
        }
    }
}
