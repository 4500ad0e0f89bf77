//! The table of verbs and roles.

/// What a user is for. Each role allows the verbs of its column in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Looks: counts, options, waiting consumers, workers; no payloads.
    Read,
    /// Puts tasks.
    Produce,
    /// Takes and finishes tasks, and uses semaphores.
    Consume,
    /// Kicks, deletes, pauses, and shows tasks with their payloads.
    Operate,
    /// Everything.
    Admin,
}

/// What a request does, as far as rights are concerned: a row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum AccessVerb {
    /// Show options and counts of a tube.
    ShowTube,
    /// Show the workers of visible tubes.
    ShowWorkers,
    /// Show what is not divided by names: metrics, services, the manager.
    ShowServer,
    /// Add tasks.
    Put,
    /// Take tasks.
    Take,
    /// Mark own deliveries as done.
    Ack,
    /// Return own deliveries.
    Release,
    /// Extend own deliveries.
    Touch,
    /// Set own deliveries aside.
    Bury,
    /// Set any task aside.
    BuryAny,
    /// Make buried tasks ready.
    Kick,
    /// Remove tasks, or end the deliveries of others.
    Delete,
    /// Release the deliveries of others.
    ReleaseAll,
    /// Remove all tasks of a tube.
    Truncate,
    /// Show tasks with their payloads.
    Peek,
    /// Show which session holds a task.
    ShowHolders,
    /// Pause or resume a tube.
    PauseTube,
    /// Create a tube.
    CreateTube,
    /// Change the options of a tube.
    AlterTube,
    /// Rename a tube.
    NameTube,
    /// Remove a tube.
    DropTube,
    /// Join or leave a session, name the worker, ask for the state of the server.
    Session,
    /// Set how long sessions keep their tasks.
    ConfigureSessions,
    /// Run an expression; what it does is checked too.
    Eval,
    /// Show a semaphore and its members.
    ShowSemaphore,
    /// Enqueue for grants, end them, and read events.
    UseSemaphore,
    /// Create, change or remove a semaphore.
    ConfigureSemaphore,
    /// Show a schedule; its payload only with the right to peek.
    ShowSchedule,
    /// Pause or resume a schedule.
    PauseSchedule,
    /// Create, change or remove a schedule.
    SetSchedule,
    /// Put the task of a schedule now; the right to put into its tube is needed too.
    RunSchedule,
    /// Show the audit entries.
    ShowAudit,
    /// Make a backup of the store, with all payloads.
    Backup,
    /// What servers do by themselves, and the endpoints of hosted services.
    RunServer,
}

/// A set of verbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerbSet(u64);

impl Role {
    /// All of them, the one with the fewest rights first.
    pub const ALL: [Role; 5] =
        [Role::Read, Role::Produce, Role::Consume, Role::Operate, Role::Admin];

    /// The name of the role in all interfaces.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Read => "read",
            Role::Produce => "produce",
            Role::Consume => "consume",
            Role::Operate => "operate",
            Role::Admin => "admin",
        }
    }

    /// The role of this name.
    pub fn from_name(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.name() == name)
    }

    /// Whether the table allows the verb to this role.
    pub const fn allows(self, verb: AccessVerb) -> bool {
        verb.row()[self as usize]
    }

    /// All verbs that the table allows to this role.
    pub fn verbs(self) -> VerbSet {
        AccessVerb::ALL.into_iter().filter(|verb| self.allows(*verb)).collect()
    }
}

impl AccessVerb {
    /// All of them.
    pub const ALL: [AccessVerb; 34] = [
        AccessVerb::ShowTube,
        AccessVerb::ShowWorkers,
        AccessVerb::ShowServer,
        AccessVerb::Put,
        AccessVerb::Take,
        AccessVerb::Ack,
        AccessVerb::Release,
        AccessVerb::Touch,
        AccessVerb::Bury,
        AccessVerb::BuryAny,
        AccessVerb::Kick,
        AccessVerb::Delete,
        AccessVerb::ReleaseAll,
        AccessVerb::Truncate,
        AccessVerb::Peek,
        AccessVerb::ShowHolders,
        AccessVerb::PauseTube,
        AccessVerb::CreateTube,
        AccessVerb::AlterTube,
        AccessVerb::NameTube,
        AccessVerb::DropTube,
        AccessVerb::Session,
        AccessVerb::ConfigureSessions,
        AccessVerb::Eval,
        AccessVerb::ShowSemaphore,
        AccessVerb::UseSemaphore,
        AccessVerb::ConfigureSemaphore,
        AccessVerb::ShowSchedule,
        AccessVerb::PauseSchedule,
        AccessVerb::SetSchedule,
        AccessVerb::RunSchedule,
        AccessVerb::ShowAudit,
        AccessVerb::Backup,
        AccessVerb::RunServer,
    ];

    /// The row of the table: whether `read`, `produce`, `consume`, `operate` and `admin` allow it.
    const fn row(self) -> [bool; 5] {
        use AccessVerb as Verb;
        const X: bool = true;
        const O: bool = false;
        match self {
            Verb::ShowTube | Verb::ShowSemaphore | Verb::ShowSchedule => [X, X, X, X, X],
            Verb::Session | Verb::Eval | Verb::RunSchedule => [X, X, X, X, X],
            Verb::ShowWorkers | Verb::ShowServer => [X, O, O, X, X],
            Verb::Put => [O, X, O, O, X],
            Verb::Take | Verb::Ack | Verb::Release | Verb::Touch => [O, O, X, O, X],
            Verb::UseSemaphore => [O, O, X, O, X],
            Verb::Bury | Verb::BuryAny => [O, O, X, X, X],
            Verb::Kick | Verb::Delete | Verb::ReleaseAll | Verb::Truncate => [O, O, O, X, X],
            Verb::Peek | Verb::ShowHolders => [O, O, O, X, X],
            Verb::PauseTube | Verb::PauseSchedule => [O, O, O, X, X],
            Verb::CreateTube | Verb::AlterTube | Verb::NameTube | Verb::DropTube => [O, O, O, O, X],
            Verb::ConfigureSessions | Verb::ConfigureSemaphore => [O, O, O, O, X],
            Verb::SetSchedule | Verb::ShowAudit | Verb::Backup => [O, O, O, O, X],
            Verb::RunServer => [O, O, O, O, X],
        }
    }

    /// Whether a request with this verb gets an audit entry, whichever role its user has: it changes
    /// what operators and administrators are responsible for, or shows everything. The work of producers and consumers,
    /// requests that only look, and what servers do by themselves get none.
    pub const fn is_audited(self) -> bool {
        use AccessVerb as Verb;
        match self {
            Verb::ShowTube | Verb::ShowWorkers | Verb::ShowServer | Verb::ShowAudit => false,
            Verb::ShowSemaphore | Verb::ShowSchedule | Verb::Peek | Verb::ShowHolders => false,
            Verb::Put | Verb::Take | Verb::Ack | Verb::Release | Verb::Touch | Verb::Bury => false,
            // What an expression does is audited by its own verb.
            Verb::UseSemaphore | Verb::Session | Verb::Eval | Verb::RunServer => false,
            Verb::BuryAny | Verb::Kick | Verb::Delete | Verb::ReleaseAll | Verb::Truncate => true,
            Verb::PauseTube | Verb::CreateTube | Verb::AlterTube | Verb::NameTube => true,
            Verb::DropTube | Verb::ConfigureSessions | Verb::ConfigureSemaphore => true,
            Verb::PauseSchedule | Verb::SetSchedule | Verb::RunSchedule => true,
            Verb::Backup => true,
        }
    }

    /// What the verb does, as a phrase of a message.
    pub const fn phrase(self) -> &'static str {
        match self {
            AccessVerb::ShowTube => "show tubes",
            AccessVerb::ShowWorkers => "show workers",
            AccessVerb::ShowServer => "show the state of the whole server",
            AccessVerb::Put => "put",
            AccessVerb::Take => "take",
            AccessVerb::Ack => "ack",
            AccessVerb::Release => "release",
            AccessVerb::Touch => "touch",
            AccessVerb::Bury | AccessVerb::BuryAny => "bury",
            AccessVerb::Kick => "kick",
            AccessVerb::Delete => "delete tasks or end deliveries of others",
            AccessVerb::ReleaseAll => "release or extend deliveries of others",
            AccessVerb::Truncate => "truncate",
            AccessVerb::Peek => "show tasks with their payloads",
            AccessVerb::ShowHolders => "show the holders of tasks",
            AccessVerb::PauseTube => "pause or resume a tube",
            AccessVerb::CreateTube => "create a tube",
            AccessVerb::AlterTube => "change a tube",
            AccessVerb::NameTube => "rename a tube",
            AccessVerb::DropTube => "drop a tube",
            AccessVerb::Session => "use a session",
            AccessVerb::ConfigureSessions => "configure sessions",
            AccessVerb::Eval => "run expressions",
            AccessVerb::ShowSemaphore => "show semaphores",
            AccessVerb::UseSemaphore => "use a semaphore",
            AccessVerb::ConfigureSemaphore => "configure a semaphore",
            AccessVerb::ShowSchedule => "show schedules",
            AccessVerb::PauseSchedule => "pause or resume a schedule",
            AccessVerb::SetSchedule => "change a schedule",
            AccessVerb::RunSchedule => "run a schedule",
            AccessVerb::ShowAudit => "show the audit entries",
            AccessVerb::Backup => "make backups",
            AccessVerb::RunServer => "use this endpoint",
        }
    }

    /// The role with the fewest rights that allows it.
    pub fn role(self) -> Role {
        Role::ALL.into_iter().find(|role| role.allows(self)).unwrap_or(Role::Admin)
    }

    const fn bit(self) -> u64 {
        1 << self as u8
    }
}

impl VerbSet {
    /// Every verb.
    pub const ALL: VerbSet = VerbSet(u64::MAX);

    /// Whether the verb belongs to it.
    pub const fn contains(self, verb: AccessVerb) -> bool {
        self.0 & verb.bit() != 0
    }

    /// This set with one more verb.
    #[must_use]
    pub const fn with(self, verb: AccessVerb) -> VerbSet {
        VerbSet(self.0 | verb.bit())
    }

    /// This set without a verb.
    #[must_use]
    pub const fn without(self, verb: AccessVerb) -> VerbSet {
        VerbSet(self.0 & !verb.bit())
    }

    /// The verbs of both sets.
    #[must_use]
    pub const fn union(self, other: VerbSet) -> VerbSet {
        VerbSet(self.0 | other.0)
    }

    /// The verbs of the set, in the order of the table.
    pub fn iter(self) -> impl Iterator<Item = AccessVerb> {
        AccessVerb::ALL.into_iter().filter(move |verb| self.contains(*verb))
    }
}

impl FromIterator<AccessVerb> for VerbSet {
    fn from_iter<T: IntoIterator<Item = AccessVerb>>(verbs: T) -> Self {
        verbs.into_iter().fold(VerbSet::default(), VerbSet::with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_is_listed_once_and_allowed_to_an_administrator() {
        let all: VerbSet = AccessVerb::ALL.into_iter().collect();
        assert_eq!(all.iter().count(), AccessVerb::ALL.len());
        assert_eq!(AccessVerb::RunServer as usize + 1, AccessVerb::ALL.len());
        assert_eq!(Role::Admin.verbs(), all);
    }

    #[test]
    fn a_role_has_one_name() {
        for role in Role::ALL {
            assert_eq!(Role::from_name(role.name()), Some(role));
        }
        assert_eq!(Role::from_name("root"), None);
    }

    // The decisions about roles, apart from the table: a role must not grow by a change of a row.
    #[test]
    fn roles_are_separate() {
        let only = |role: Role, verbs: &[AccessVerb]| {
            let seen = Role::Read.verbs();
            let own: Vec<_> = role.verbs().iter().filter(|verb| !seen.contains(*verb)).collect();
            assert_eq!(own, verbs, "{role:?}");
        };
        use AccessVerb as Verb;
        only(Role::Produce, &[Verb::Put]);
        let consume = [
            Verb::Take,
            Verb::Ack,
            Verb::Release,
            Verb::Touch,
            Verb::Bury,
            Verb::BuryAny,
            Verb::UseSemaphore,
        ];
        only(Role::Consume, &consume);
        let operate = [
            Verb::Bury,
            Verb::BuryAny,
            Verb::Kick,
            Verb::Delete,
            Verb::ReleaseAll,
            Verb::Truncate,
            Verb::Peek,
            Verb::ShowHolders,
            Verb::PauseTube,
            Verb::PauseSchedule,
        ];
        only(Role::Operate, &operate);
    }

    #[test]
    fn a_verb_names_the_role_with_the_fewest_rights() {
        assert_eq!(AccessVerb::Bury.role(), Role::Consume);
        assert_eq!(AccessVerb::ShowTube.role(), Role::Read);
        assert_eq!(AccessVerb::RunServer.role(), Role::Admin);
    }

    // The decision for each verb, apart from the rule: an action must not disappear from the audit by
    // a change of the rule.
    #[test]
    fn every_verb_is_audited_or_not() {
        use AccessVerb as Verb;
        let audited = [
            Verb::BuryAny,
            Verb::Kick,
            Verb::Delete,
            Verb::ReleaseAll,
            Verb::Truncate,
            Verb::PauseTube,
            Verb::CreateTube,
            Verb::AlterTube,
            Verb::NameTube,
            Verb::DropTube,
            Verb::ConfigureSessions,
            Verb::ConfigureSemaphore,
            Verb::PauseSchedule,
            Verb::SetSchedule,
            Verb::RunSchedule,
            Verb::Backup,
        ];
        let other = [
            Verb::ShowTube,
            Verb::ShowWorkers,
            Verb::ShowServer,
            Verb::Put,
            Verb::Take,
            Verb::Ack,
            Verb::Release,
            Verb::Touch,
            Verb::Bury,
            Verb::Peek,
            Verb::ShowHolders,
            Verb::Session,
            Verb::Eval,
            Verb::ShowSemaphore,
            Verb::UseSemaphore,
            Verb::ShowSchedule,
            Verb::ShowAudit,
            Verb::RunServer,
        ];
        assert_eq!(audited.len() + other.len(), Verb::ALL.len());
        for verb in Verb::ALL {
            assert_eq!(verb.is_audited(), audited.contains(&verb), "{verb:?}");
            assert_ne!(verb.is_audited(), other.contains(&verb), "{verb:?}");
        }
    }

    #[test]
    fn a_set_changes_by_one_verb() {
        let set = VerbSet::default().with(AccessVerb::Put).with(AccessVerb::Take);
        assert!(set.contains(AccessVerb::Put) && !set.contains(AccessVerb::Kick));
        assert_eq!(set.without(AccessVerb::Put).iter().collect::<Vec<_>>(), [AccessVerb::Take]);
        assert_eq!(set.union(VerbSet::ALL), VerbSet::ALL);
    }
}
