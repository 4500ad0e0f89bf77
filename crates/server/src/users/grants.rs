//! Reads the grants of a user: roles on names, or verbs of Tarantool's queue on tubes.

use std::fmt;

use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use taskyard_core::access::{AccessVerb, NamePattern, Permission, Permissions, Role, VerbSet};
use taskyard_core::limits::USER_PATTERNS_MAX;

/// What a user may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grants {
    /// Everything.
    All,
    /// What at least one of these allows.
    List(Vec<Grant>),
}

/// Allows verbs on names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant(Permissions);

/// A verb of Tarantool's queue that can be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is the method of that name")]
pub enum Verb {
    Put,
    Take,
    Ack,
    Release,
    Touch,
    Bury,
    Kick,
    Peek,
    Delete,
    Truncate,
    ReleaseAll,
    Create,
    Drop,
    Cfg,
    Eval,
    Execute,
}

/// The verbs that a native command may use on some tubes: those about a tube.
const ON_TUBES: [AccessVerb; 18] = [
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
    AccessVerb::DropTube,
    AccessVerb::ShowTube,
];

impl Verb {
    /// The verbs that producers and consumers need.
    fn default_verbs() -> Vec<Verb> {
        use Verb::{Ack, Bury, Delete, Kick, Peek, Put, Release, Take, Touch};
        vec![Put, Take, Ack, Release, Touch, Bury, Kick, Peek, Delete]
    }

    /// The rows of the table that it stands for, on names of this pattern.
    fn verbs(self, names: &NamePattern) -> VerbSet {
        let one = |verb| VerbSet::default().with(verb);
        match self {
            Verb::Put => one(AccessVerb::Put),
            Verb::Take => one(AccessVerb::Take),
            Verb::Ack => one(AccessVerb::Ack),
            Verb::Release => one(AccessVerb::Release),
            Verb::Touch => one(AccessVerb::Touch),
            Verb::Bury => one(AccessVerb::Bury).with(AccessVerb::BuryAny),
            Verb::Kick => one(AccessVerb::Kick),
            Verb::Peek => one(AccessVerb::Peek),
            Verb::Delete => one(AccessVerb::Delete),
            Verb::Truncate => one(AccessVerb::Truncate),
            Verb::ReleaseAll => one(AccessVerb::ReleaseAll),
            Verb::Create => one(AccessVerb::CreateTube).with(AccessVerb::NameTube),
            Verb::Drop => one(AccessVerb::DropTube),
            // It has no tube; see `Grant::new`.
            Verb::Cfg => VerbSet::default(),
            Verb::Eval => one(AccessVerb::Eval),
            Verb::Execute if names.matches_all() => VerbSet::ALL.without(AccessVerb::Eval),
            Verb::Execute => ON_TUBES.into_iter().collect(),
        }
    }
}

impl Grants {
    /// The rights that these grants give.
    pub(crate) fn permissions(&self) -> Permissions {
        match self {
            Grants::All => Permissions::All,
            Grants::List(grants) => {
                let each = grants.iter().map(|grant| grant.0.clone());
                each.fold(Permissions::none(), Permissions::or)
            }
        }
    }
}

impl Grant {
    /// Allows these verbs of Tarantool's queue on the tubes whose names match the pattern. A pattern
    /// that is not accepted matches no tube.
    pub fn new(tube: &str, verbs: &[Verb]) -> Self {
        NamePattern::new(tube).map_or(Grant(Permissions::none()), |names| Grant::of(names, verbs))
    }

    /// Allows what these roles allow on these names.
    pub fn roles(roles: &[Role], names: Vec<NamePattern>) -> Self {
        Grant(Permissions::of_roles(roles, names))
    }

    fn of(names: NamePattern, verbs: &[Verb]) -> Self {
        // A tube is visible by any grant for it, and sessions belong to every client.
        let seen = VerbSet::default().with(AccessVerb::ShowTube).with(AccessVerb::Session);
        let set = verbs.iter().fold(seen, |set, verb| set.union(verb.verbs(&names)));
        let mut list = vec![Permission { names: vec![names], verbs: set }];
        if verbs.contains(&Verb::Cfg) {
            let verbs = VerbSet::default().with(AccessVerb::ConfigureSessions);
            list.push(Permission { names: vec![NamePattern::all()], verbs });
        }
        Grant(Permissions::Some(list))
    }
}

/// A grant, as the operator writes it: `tube` and `verbs`, or `roles` and `tubes`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantEntry {
    tube: Option<String>,
    verbs: Option<Vec<Verb>>,
    roles: Option<Vec<RoleName>>,
    tubes: Option<Vec<String>>,
}

impl GrantEntry {
    fn grant(self) -> Result<Grant, String> {
        match self {
            GrantEntry { roles: Some(roles), tubes, tube: None, verbs: None } => {
                role_grant(&roles, tubes)
            }
            GrantEntry { tube, verbs, roles: None, tubes: None } => {
                let names = tube.map_or(Ok(NamePattern::all()), |tube| pattern(&tube))?;
                Ok(Grant::of(names, &verbs.unwrap_or_else(Verb::default_verbs)))
            }
            _ => Err("a grant has either roles and tubes, or tube and verbs".into()),
        }
    }
}

/// A role, as the operator writes it.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct RoleName(Role);

impl TryFrom<String> for RoleName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Role::from_name(&name).map(RoleName).ok_or_else(|| {
            let known = Role::ALL.map(Role::name).join(", ");
            format!("no such role: {name:?}; the roles are {known}")
        })
    }
}

/// The grant of these roles on the names of these patterns. Without patterns it is for all names.
pub(super) fn role_grant(roles: &[RoleName], tubes: Option<Vec<String>>) -> Result<Grant, String> {
    if roles.is_empty() {
        return Err("roles is empty; list at least one role".into());
    }
    let tubes = tubes.unwrap_or_else(|| vec!["*".into()]);
    if tubes.is_empty() {
        return Err("tubes is empty; list at least one pattern, such as '*'".into());
    }
    if tubes.len() > USER_PATTERNS_MAX {
        let count = tubes.len();
        return Err(format!("{count} patterns in tubes; use at most {USER_PATTERNS_MAX}"));
    }
    let roles: Vec<Role> = roles.iter().map(|role| role.0).collect();
    let names = tubes.iter().map(|text| pattern(text)).collect::<Result<_, _>>()?;
    Ok(Grant::roles(&roles, names))
}

fn pattern(text: &str) -> Result<NamePattern, String> {
    NamePattern::new(text).map_err(|error| error.to_string())
}

impl<'de> Deserialize<'de> for Grants {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(GrantsVisitor)
    }
}

struct GrantsVisitor;

impl<'de> Visitor<'de> for GrantsVisitor {
    type Value = Grants;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the word all, or a list of grants")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Grants, E> {
        match text {
            "all" => Ok(Grants::All),
            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Grants, A::Error> {
        let mut grants = Vec::new();
        while let Some(entry) = list.next_element::<GrantEntry>()? {
            if grants.len() >= USER_PATTERNS_MAX {
                return Err(de::Error::custom(format!("over {USER_PATTERNS_MAX} grants")));
            }
            grants.push(entry.grant().map_err(de::Error::custom)?);
        }
        Ok(Grants::List(grants))
    }
}
