//! The rights of one user.

use std::fmt;

use super::RESERVED_PREFIX;
use super::needs::{AccessTarget, for_each_need};
use super::pattern::NamePattern;
use super::verb::{AccessVerb, Role, VerbSet};
use crate::command::{Command, Reply};
use crate::semaphore::SemaphoreReply;
use crate::stored_schedule::{ScheduleReply, StoredSchedule};
use crate::task::Body;

/// The rights of one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permissions {
    /// Everything.
    All,
    /// What at least one of these allows.
    Some(Vec<Permission>),
}

/// Allows verbs on names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    /// The names of tubes, semaphores and schedules.
    pub names: Vec<NamePattern>,
    /// The verbs.
    pub verbs: VerbSet,
}

/// A right that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The verb that is not allowed.
    pub verb: AccessVerb,
    /// What it was to be applied to, as a phrase.
    pub target: String,
}

/// The payload of a schedule that may not be shown: nil.
const HIDDEN: &[u8] = b"\xc0";

impl Permissions {
    /// No rights.
    pub const fn none() -> Self {
        Permissions::Some(Vec::new())
    }

    /// What these roles allow on these names. An administrator of all names has all rights.
    pub fn of_roles(roles: &[Role], names: Vec<NamePattern>) -> Self {
        let verbs = roles.iter().map(|role| role.verbs());
        let verbs = verbs.fold(VerbSet::default(), VerbSet::union);
        let permission = Permission { names, verbs };
        match roles.contains(&Role::Admin) && permission.covers_all() {
            true => Permissions::All,
            false => Permissions::Some(vec![permission]),
        }
    }

    /// What at least one of both allows.
    #[must_use]
    pub fn or(self, other: Permissions) -> Self {
        match (self, other) {
            (Permissions::Some(mut list), Permissions::Some(more)) => {
                list.extend(more);
                Permissions::Some(list)
            }
            _ => Permissions::All,
        }
    }

    /// Refuses a command unless every right that it needs is there.
    pub fn check(&self, command: &Command) -> Result<(), Denied> {
        match self {
            Permissions::All => Ok(()),
            Permissions::Some(_) => {
                for_each_need(command, |verb, target| self.require(verb, target))
            }
        }
    }

    /// Refuses unless the verb is allowed on the target.
    pub fn require(&self, verb: AccessVerb, target: AccessTarget<'_>) -> Result<(), Denied> {
        let is_allowed = match target {
            AccessTarget::Tube(name)
            | AccessTarget::Semaphore(name)
            | AccessTarget::Schedule(name) => self.allows(verb, name),
            AccessTarget::Any => self.any(|one| one.verbs.contains(verb)),
            AccessTarget::All => self.any(|one| one.verbs.contains(verb) && one.covers_all()),
        };
        if is_allowed { Ok(()) } else { Err(Denied { verb, target: target.to_string() }) }
    }

    /// Whether the verb is allowed on this name.
    pub fn allows(&self, verb: AccessVerb, name: &str) -> bool {
        self.any(|one| one.verbs.contains(verb) && one.covers(name))
    }

    /// Whether the tube of this name is visible.
    pub fn can_see(&self, tube: &str) -> bool {
        self.allows(AccessVerb::ShowTube, tube)
    }

    /// Whether all tubes are visible.
    pub fn can_see_all(&self) -> bool {
        self.require(AccessVerb::ShowTube, AccessTarget::All).is_ok()
    }

    /// Whether anything is allowed.
    pub fn allows_anything(&self) -> bool {
        self.any(|_| true)
    }

    /// Removes from a reply what is not visible, and the payloads of schedules without the right to
    /// peek.
    pub fn hide(&self, reply: &mut Reply) {
        if *self == Permissions::All {
            return;
        }
        match reply {
            Reply::Tubes(tubes) => tubes.retain(|tube| self.can_see(tube.name.as_str())),
            Reply::Semaphore(SemaphoreReply::Semaphores(semaphores)) => {
                semaphores.retain(|info| self.allows(AccessVerb::ShowSemaphore, info.key.as_str()));
            }
            Reply::Schedule(ScheduleReply::Schedules(schedules)) => self.hide_schedules(schedules),
            _ => {}
        }
    }

    /// Removes the schedules that are not visible, and payloads without the right to peek.
    pub fn hide_schedules(&self, schedules: &mut Vec<StoredSchedule>) {
        schedules.retain(|one| self.allows(AccessVerb::ShowSchedule, one.name.as_str()));
        for schedule in schedules {
            if !self.allows(AccessVerb::Peek, schedule.name.as_str()) {
                schedule.template.body = Body::new(HIDDEN);
            }
        }
    }

    fn any(&self, allows: impl FnMut(&Permission) -> bool) -> bool {
        match self {
            Permissions::All => true,
            Permissions::Some(list) => list.iter().any(allows),
        }
    }
}

impl Permission {
    fn covers(&self, name: &str) -> bool {
        self.names.iter().any(|pattern| pattern.matches(name)) && !name.starts_with(RESERVED_PREFIX)
    }

    fn covers_all(&self) -> bool {
        self.names.iter().any(NamePattern::matches_all)
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (role, phrase) = (self.verb.role().name(), self.verb.phrase());
        write!(f, "the role '{role}' for {} is needed to {phrase}", self.target)
    }
}

impl std::error::Error for Denied {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Finish, FinishItem, Holder};
    use crate::lease::Lease;
    use crate::semaphore::{SemaphoreCommand, SemaphoreKey};
    use crate::task::TaskId;
    use crate::time::Span;
    use crate::tube::{Kind, TubeChange, TubeName, TubeOptions};

    fn user(roles: &[Role], names: &[&str]) -> Permissions {
        let names = names.iter().map(|text| NamePattern::new(text).unwrap()).collect();
        Permissions::of_roles(roles, names)
    }

    fn tube(name: &str) -> TubeName {
        TubeName::new(name).unwrap()
    }

    fn finish(holder: Holder, finish: Finish) -> Command {
        let items = vec![FinishItem { id: TaskId(0), holder, finish }];
        Command::Finish { tube: tube("mail"), items, show: false }
    }

    #[test]
    fn a_role_applies_to_matching_names_only() {
        let put = |name| Command::Put { tube: tube(name), tasks: Vec::new(), wait: Span::ZERO };
        let mailer = user(&[Role::Produce], &["mail.*"]);
        assert_eq!(mailer.check(&put("mail.welcome")), Ok(()));
        let denied = mailer.check(&put("orders")).unwrap_err();
        let text = "the role 'produce' for tube 'orders' is needed to put";
        assert_eq!(denied.to_string(), text);
        assert!(mailer.check(&Command::Kick { tube: tube("mail.a"), count: 1 }).is_err());
        let both = user(&[Role::Produce], &["out"]).or(user(&[Role::Consume], &["in"]));
        assert!(both.allows(AccessVerb::Put, "out") && both.allows(AccessVerb::Take, "in"));
        assert!(!both.allows(AccessVerb::Put, "in") && !both.allows(AccessVerb::Take, "out"));
        assert!(!Permissions::none().allows_anything());
        assert_eq!(both.or(Permissions::All), Permissions::All);
    }

    // With the pattern of all tubes a user could have removed the entries that count the user's
    // tubes.
    #[test]
    fn no_pattern_includes_the_owners_of_tubes() {
        let truncate = Command::Truncate { tube: tube("taskyard.owners.ann") };
        assert!(user(&[Role::Operate], &["*"]).check(&truncate).is_err());
        assert!(user(&[Role::Admin], &["taskyard.*"]).check(&truncate).is_err());
        assert_eq!(user(&[Role::Admin], &["*"]), Permissions::All);
        assert_eq!(Permissions::All.check(&truncate), Ok(()));
    }

    #[test]
    fn a_consumer_ends_its_own_deliveries_only() {
        let consumer = user(&[Role::Consume], &["*"]);
        let own = Holder::Lease(Lease(1));
        for (command, role) in [
            (finish(own, Finish::Ack), None),
            (finish(own, Finish::Touch(Span::ZERO)), None),
            (finish(own, Finish::fail_by_policy("no route", 1)), None),
            (finish(Holder::Any, Finish::Bury), None),
            (finish(Holder::Any, Finish::Ack), Some(Role::Operate)),
            (finish(Holder::Any, Finish::Touch(Span::ZERO)), Some(Role::Operate)),
            (finish(Holder::Any, Finish::fail_by_policy("no route", 1)), Some(Role::Operate)),
        ] {
            let missing = consumer.check(&command).err().map(|denied| denied.verb.role());
            assert_eq!(missing, role, "{command:?}");
        }
    }

    #[test]
    fn a_pause_is_not_a_change_of_options() {
        let operator = user(&[Role::Operate], &["*"]);
        let alter = |change| Command::AlterTube { tube: tube("mail"), change };
        let pause = TubeChange { paused: Some(true), ..TubeChange::default() };
        assert_eq!(operator.check(&alter(pause.clone())), Ok(()));
        for change in [TubeChange { pri: Some(1), ..pause }, TubeChange::default()] {
            let denied = operator.check(&alter(change)).unwrap_err();
            assert_eq!(denied.verb, AccessVerb::AlterTube);
        }
    }

    #[test]
    fn both_names_of_a_renamed_tube_are_checked() {
        let name =
            |from, to| Command::NameTube { tube: tube(from), name: tube(to), queue_num: None };
        let admin = user(&[Role::Admin], &["mail.*"]);
        assert_eq!(admin.check(&name("mail.a", "mail.b")), Ok(()));
        for command in [name("mail.a", "orders"), name("orders", "mail.a")] {
            assert_eq!(admin.check(&command).unwrap_err().target, "tube 'orders'");
        }
    }

    // An administrator of some tubes could use up the grants of any semaphore.
    #[test]
    fn the_semaphore_of_a_new_tube_is_checked() {
        let create = |semaphore| Command::CreateTube {
            tube: tube("mail.a"),
            options: TubeOptions {
                semaphore: Some(SemaphoreKey::new(semaphore).unwrap()),
                ..TubeOptions::new(Kind::FifoTtl)
            },
            if_not_exists: false,
        };
        let admin = user(&[Role::Admin], &["mail.*"]);
        assert_eq!(admin.check(&create("mail.limit")), Ok(()));
        assert_eq!(admin.check(&create("gpu")).unwrap_err().target, "semaphore 'gpu'");
    }

    #[test]
    fn what_has_no_name_needs_all_names() {
        let key = SemaphoreKey::new("gpu").unwrap();
        let events =
            |key| Command::Semaphore(SemaphoreCommand::Events { key, count: 1, wait: Span::ZERO });
        let gpu = user(&[Role::Consume], &["gpu"]);
        assert_eq!(gpu.check(&events(Some(key))), Ok(()));
        assert!(gpu.check(&events(None)).unwrap_err().to_string().contains("pattern '*'"));
        let ack = SemaphoreCommand::Acknowledge { events: Vec::new() };
        assert!(gpu.check(&Command::Semaphore(ack.clone())).is_err());
        let all = user(&[Role::Consume], &["*"]);
        assert_eq!(all.check(&Command::Semaphore(ack)), Ok(()));
        assert_eq!(all.check(&events(None)), Ok(()));
    }
}
