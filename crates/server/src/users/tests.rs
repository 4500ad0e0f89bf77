//! Tests of the users file and of logins.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use taskyard_core::access::{AccessTarget, AccessVerb, Permissions, Role};
use taskyard_core::limits::{USER_NAME_BYTES_MAX, USER_PATTERNS_MAX, USERS_MAX};
use taskyard_core::{Command, Span, TubeName};
use taskyard_iproto::auth;

use super::*;

const TOKEN: &str = "0123456789abcdef";
/// The SHA-256 of it.
const TOKEN_SHA256: &str = "9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f";

fn users(list: Value) -> Result<Users, String> {
    serde_json::from_value(json!({ "users": list })).map_err(|error| error.to_string())
}

fn rights(grants: Vec<Grant>) -> Permissions {
    Grants::List(grants).permissions()
}

#[test]
fn the_file_lists_users_and_grants() {
    let hash = BASE64_STANDARD.encode(auth::hash_password("secret"));
    let users = users(json!([
        { "name": "boss", "password": "secret", "grants": "all" },
        { "name": "copy", "password_hash": hash, "grants": [{}] },
        { "name": "lim", "password": "x", "grants": [
            { "tube": "mail*", "verbs": ["put", "drop"] },
        ]},
    ]));
    let users = users.unwrap();
    let salt = [7; 32];
    let shown = auth::scramble("secret", &salt);
    let log_in = |name, scramble| {
        let user = users.authenticate(name, scramble, &salt)?;
        Ok(user.map_or_else(|| users.guest(), |user| user.permissions.clone()))
    };
    assert_eq!(*log_in("boss", Some(&shown)).unwrap(), Permissions::All);
    let copy = log_in("copy", Some(&shown)).unwrap();
    assert!(copy.allows(AccessVerb::Take, "any") && !copy.allows(AccessVerb::DropTube, "any"));
    for (name, scramble) in [("lim", Some(&shown)), ("lim", None), ("who", Some(&shown))] {
        assert_eq!(log_in(name, scramble), Err(LoginFailed));
    }
    let shown = auth::scramble("x", &salt);
    let lim = log_in("lim", Some(&shown)).unwrap();
    assert!(lim.allows(AccessVerb::Put, "mails") && lim.allows(AccessVerb::DropTube, "mail"));
    assert!(!lim.allows(AccessVerb::Take, "mail") && !lim.allows(AccessVerb::Put, "post"));
    assert!(lim.can_see("mail") && !lim.can_see_all() && lim.allows_anything());
    assert!(!users.guest().allows_anything());
}

// The audit shows who was added, removed or changed, and no secrets.
#[test]
fn a_new_list_says_what_has_changed() {
    let user = |name: &str, token: &str, roles: &[Role]| {
        let names = vec![taskyard_core::access::NamePattern::all()];
        User::with_token(name, token, Grants::List(vec![Grant::roles(roles, names)]))
    };
    let handle = UsersHandle::default();
    let first = || {
        let (ann, bob) = (
            user("ann", "token-of-ann", &[Role::Read]),
            user("bob", "token-of-bob", &[Role::Read]),
        );
        Users::new(vec![ann, bob, user("carol", "token-of-carol", &[Role::Read])])
    };
    assert_eq!(handle.replace(first()).added, ["ann", "bob", "carol"]);
    assert!(handle.replace(first()).is_empty());
    let change = handle.replace(Users::new(vec![
        user("ann", "another-token", &[Role::Read]),
        user("bob", "token-of-bob", &[Role::Operate]),
        user("dan", "token-of-dan", &[Role::Read]),
    ]));
    assert_eq!(
        change.to_string(),
        "2 changed, 1 removed, 1 added; changed: ann, bob; removed: carol; added: dan"
    );
}

#[test]
fn the_file_lists_tokens_and_roles() {
    let users = users(json!([
        { "name": "mailer", "token_sha256": TOKEN_SHA256, "roles": ["produce"],
          "tubes": ["mail.*", "news"] },
        { "name": "both", "token_sha256": "a".repeat(64), "grants": [
            { "roles": ["produce"], "tubes": ["out"] },
            { "roles": ["consume", "read"], "tubes": ["in"] },
        ]},
        { "name": "boss", "token_sha256": "B".repeat(64), "roles": ["admin"] },
    ]));
    let users = users.unwrap();
    assert!(!users.has_passwords());
    let mailer = users.with_secret(&TokenHash::of(TOKEN.as_bytes())).unwrap();
    assert_eq!(mailer.name(), "mailer");
    assert!(mailer.permissions.allows(AccessVerb::Put, "mail.a"));
    assert!(mailer.permissions.allows(AccessVerb::Put, "news"));
    assert!(!mailer.permissions.allows(AccessVerb::Put, "orders"));
    assert!(users.with_secret(&TokenHash::of(b"0123456789abcdeF")).is_none());
    // A hash with the same beginning is another token.
    let mut close = TokenHash::of(TOKEN.as_bytes());
    close.0[31] ^= 1;
    assert!(users.with_secret(&close).is_none());
    let both = &users.find("both").unwrap().permissions;
    assert!(both.allows(AccessVerb::Put, "out") && both.allows(AccessVerb::Take, "in"));
    assert!(!both.allows(AccessVerb::Put, "in"));
    assert_eq!(*users.find("boss").unwrap().permissions, Permissions::All);
    // A token is not a password: over iproto its user cannot log in, also not with the empty one.
    let salt = [7; 32];
    for password in [TOKEN, ""] {
        let shown = auth::scramble(password, &salt);
        assert_eq!(users.authenticate("mailer", Some(&shown), &salt).err(), Some(LoginFailed));
        assert_eq!(users.authenticate("mailer", Some(&[0; 20]), &salt).err(), Some(LoginFailed));
    }
}

// With a grant for all tubes a user could have removed the entries that count the user's tubes.
#[test]
fn the_stored_owners_of_tubes_are_for_administrators() {
    let tube = crate::tube_owners::owner_tube("ann");
    for verbs in [&[Verb::Put, Verb::Take, Verb::Truncate][..], &[Verb::Execute]] {
        let all = rights(vec![Grant::new("*", verbs)]);
        assert!(all.allows(AccessVerb::Truncate, "taskyard.other"));
        assert!(!all.allows(AccessVerb::Truncate, tube.as_str()) && !all.can_see(tube.as_str()));
    }
    assert!(Grants::All.permissions().allows(AccessVerb::Truncate, tube.as_str()));
}

#[test]
fn execute_on_all_tubes_allows_what_has_no_tube() {
    let name = |name| TubeName::new(name).unwrap();
    let commands = [
        Command::NameTube { tube: name("mail"), name: name("mail2"), queue_num: None },
        Command::ConfigureSessions { ttr: Span::ZERO },
        Command::Tick { limit: 1, seed: 0 },
    ];
    let all = rights(vec![Grant::new("*", &[Verb::Execute])]);
    let some = rights(vec![Grant::new("mail*", &[Verb::Execute])]);
    for command in &commands {
        assert_eq!(all.check(command), Ok(()), "{command:?}");
        assert!(some.check(command).is_err(), "{command:?}");
    }
    assert_eq!(some.check(&Command::Truncate { tube: name("mail") }), Ok(()));
    let cfg = rights(vec![Grant::new("mail", &[Verb::Cfg])]);
    assert_eq!(cfg.check(&commands[1]), Ok(()));
    assert!(!cfg.can_see("post"));
    let eval = rights(vec![Grant::new("mail", &[Verb::Eval])]);
    assert!(eval.require(AccessVerb::Eval, AccessTarget::Any).is_ok());
    assert!(all.require(AccessVerb::Eval, AccessTarget::Any).is_err());
}

#[test]
fn the_guest_may_do_everything_only_without_listed_users() {
    assert_eq!(*Users::default().guest(), Permissions::All);
    let some = vec![Grant::new("open", &[Verb::Put])];
    let users = Users::new(vec![User::guest(Grants::List(some.clone()))]);
    assert_eq!(*users.guest(), rights(some));
    let token = Token::new(TOKEN).unwrap();
    assert!(!Users::default().with_token(&token).guest().allows_anything());
}

#[test]
fn errors_in_the_file_are_reported() {
    let with = |more: Value| {
        let mut entry = json!({ "name": "a", "token_sha256": TOKEN_SHA256 });
        entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        entry
    };
    let many: Vec<_> = (0..=USER_PATTERNS_MAX).map(|number| number.to_string()).collect();
    for (entry, said) in [
        (json!({ "name": "a", "grants": "all" }), "either password"),
        (json!({ "name": "a", "password": "x", "grants": "most" }), "the word all"),
        (json!({ "name": "a", "password": "x", "grants": [{ "verbs": ["fly"] }] }), "fly"),
        (json!({ "name": "a", "password_hash": "abc", "grants": "all" }), "28 characters"),
        (json!({ "name": "a", "password": "x", "grant": "all" }), "grant"),
        (json!({ "name": "a", "token_sha256": "ab", "roles": ["read"] }), "64 hexadecimal"),
        (json!({ "name": "a", "token_sha256": "é".repeat(32), "roles": ["read"] }), "64 hex"),
        (with(json!({})), "either roles"),
        (with(json!({ "roles": ["read"], "grants": "all" })), "either roles"),
        (with(json!({ "roles": ["root"] })), "read, produce, consume, operate, admin"),
        (with(json!({ "roles": [] })), "at least one role"),
        (with(json!({ "roles": ["read"], "tubes": [] })), "at least one pattern"),
        (with(json!({ "roles": ["read"], "tubes": [""] })), "a pattern is empty"),
        (with(json!({ "roles": ["read"], "tubes": many })), "use at most 100"),
        (with(json!({ "grants": [{ "roles": ["read"], "verbs": ["put"] }] })), "a grant has"),
        (json!({ "name": "x".repeat(USER_NAME_BYTES_MAX + 1), "grants": "all" }), "at most 128"),
    ] {
        let refused = users(json!([entry])).unwrap_err();
        assert!(refused.contains(said), "{refused}");
    }
}

// The first of two users of one name was used silently, and the other could not log in.
#[test]
fn names_and_tokens_are_listed_once() {
    let user = |name| json!({ "name": name, "password": "x", "grants": "all" });
    assert!(users(json!([user("a"), user("b")])).is_ok());
    let refused = users(json!([user("a"), user("b"), user("a")])).unwrap_err();
    assert!(refused.contains("'a' is listed twice"), "{refused}");
    assert!(users(json!([user("")])).unwrap_err().contains("empty"));
    let user = |name| json!({ "name": name, "token_sha256": TOKEN_SHA256, "roles": ["read"] });
    let refused = users(json!([user("a"), user("b")])).unwrap_err();
    assert!(refused.contains("'b' has the token of another"), "{refused}");
}

#[test]
fn the_number_of_users_is_limited() {
    let user = |number: usize| {
        let token = format!("{number:064x}");
        json!({ "name": number.to_string(), "token_sha256": token, "roles": ["read"] })
    };
    assert!(users((0..USERS_MAX).map(user).collect()).is_ok());
    let refused = users((0..=USERS_MAX).map(user).collect()).unwrap_err();
    assert!(refused.contains("the maximum is 10000"), "{refused}");
}

// A name with a character that turns the direction of writing shows as another one in the log.
#[test]
fn a_name_shows_as_it_is_written() {
    let user = |name| json!([{ "name": name, "password": "x", "grants": "all" }]);
    assert!(users(user("пользователь")).is_ok());
    for name in ["ssob\u{202e}", "a\u{2066}b", "\u{200f}a", "a\nb"] {
        let refused = users(user(name)).unwrap_err();
        assert!(refused.contains("must not contain"), "{refused}");
    }
}

#[test]
fn secrets_are_not_printed() {
    let user = User { ..User::new("a", "secret", Grants::All) };
    let shown = format!("{user:?}{:?}", User::with_token("b", TOKEN, Grants::All));
    assert!(shown.contains("PasswordHash(..)") && shown.contains("TokenHash(..)"), "{shown}");
    let handle = UsersHandle::new(Users::new(vec![user]), Token::new(TOKEN).ok());
    assert!(!format!("{handle:?}").contains(TOKEN));
}

fn producer(token: &str, tube: &str) -> User {
    let names = vec![taskyard_core::access::NamePattern::new(tube).unwrap()];
    User::with_token("ann", token, Grants::List(vec![Grant::roles(&[Role::Produce], names)]))
}

#[test]
fn a_new_list_changes_the_rights_of_connected_users() {
    let handle = UsersHandle::new(Users::new(vec![producer(TOKEN, "mail")]), None);
    let secret = TokenHash::of(TOKEN.as_bytes());
    let mut ann = handle.with_secret(&secret).unwrap();
    let may_put = |ann: &Principal, tube| ann.permissions().allows(AccessVerb::Put, tube);
    assert!(may_put(&ann, "mail"));
    handle.replace(Users::new(vec![producer(TOKEN, "orders")]));
    handle.refresh(&mut ann);
    assert!(!may_put(&ann, "mail") && may_put(&ann, "orders"));
    // A user with another secret is not the one that logged in.
    handle.replace(Users::new(vec![producer("another-0123456789", "orders")]));
    handle.refresh(&mut ann);
    assert!(!ann.permissions().allows_anything() && handle.with_secret(&secret).is_none());
    handle.replace(Users::new(vec![producer(TOKEN, "orders")]));
    handle.refresh(&mut ann);
    assert!(may_put(&ann, "orders"));
    handle.replace(Users::new(vec![User::guest(Grants::List(Vec::new()))]));
    handle.refresh(&mut ann);
    assert!(!ann.permissions().allows_anything());
}

#[test]
fn the_token_of_the_server_belongs_to_every_list() {
    let token = Token::new(TOKEN).unwrap();
    let handle = UsersHandle::new(Users::default(), Some(token));
    let mut admin = handle.with_secret(&TokenHash::of(TOKEN.as_bytes())).unwrap();
    let own = User::new("admin", "other", Grants::List(Vec::new()));
    handle.replace(Users::new(vec![own]));
    handle.refresh(&mut admin);
    assert_eq!((admin.name(), admin.permissions()), ("admin", &Permissions::All));
    assert!(handle.with_secret(&TokenHash::of(TOKEN.as_bytes())).is_some());
    // Over iproto the listed user keeps the name.
    let salt = [7; 32];
    let log_in = |password| {
        let shown = auth::scramble(password, &salt);
        handle.authenticate("admin", Some(&shown), &salt)
    };
    assert!(!log_in("other").unwrap().permissions().allows_anything());
    assert!(log_in(TOKEN).is_err());
}
