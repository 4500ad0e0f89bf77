//! Signing in on the dashboard, what a user is offered, and the ends of a session.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use taskyard_core::access::{NamePattern, Role};
use taskyard_core::{Span, Timestamp};
use taskyard_engine::ManualClock;
use taskyard_server::{Config, Grant, Grants, PageSessionConfig, User, Users};
use taskyard_testkit::chromium::{ENTER, Page, browse};
use taskyard_testkit::recorded_output::register_secret;

use crate::site::DashboardServer;

const ADMIN_TOKEN: &str = "right-0123456789";
const ANN_TOKEN: &str = "the-token-of-ann";
const IDLE_SECONDS: u64 = 600;

/// Everything that a script of the page can read and that stays.
const KEPT: &str = "return [localStorage.length, sessionStorage.length, document.cookie]";

fn user(name: &str, token: &str, role: Role, pattern: &str) -> User {
    register_secret(token);
    let names = vec![NamePattern::new(pattern).unwrap()];
    User::with_token(name, token, Grants::List(vec![Grant::roles(&[role], names)]))
}

/// A server whose sessions end by this clock.
async fn server(clock: &Arc<ManualClock>, users: Vec<User>) -> DashboardServer {
    let clock = clock.clone();
    let change = |config: &mut Config| {
        config.users = Users::new(users);
        let idle_max = Duration::from_secs(IDLE_SECONDS);
        config.page_sessions = PageSessionConfig { idle_max, clock };
    };
    DashboardServer::configured(Some(ADMIN_TOKEN), change).await
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000)))
}

/// Signs in as another tab of the browser would.
async fn sign_in_in_another_tab(page: &Page, token: &str) {
    let script = format!(
        "return fetch('/v1/session', {{ method: 'POST', headers: {{ 'Content-Type': 'application/json' }},
           body: JSON.stringify({{ token: '{token}' }}) }}).then(({{ status }}) => status)"
    );
    assert_eq!(page.run(&script).await, 200);
}

async fn sign_in(page: &Page, token: &str) {
    page.until("text('#state') === 'token required'").await;
    page.until("document.activeElement.id === 'token'").await;
    page.press(token).await;
    page.press(&ENTER.to_string()).await;
    page.until("document.querySelector('#token-form').hidden").await;
}

#[tokio::test]
async fn a_user_signs_in_acts_and_signs_out() {
    let site = server(&clock(), Vec::new()).await;
    site.bury("mail", &[(json!(1), "one"), (json!(2), "two")]).await;
    let path = "/tubes/mail?state=buried";
    browse(&format!("{}{path}", site.url()), async |page| {
        page.until("text('#state') === 'token required'").await;
        let field = "const field = document.querySelector('#token'); return ";
        let label = page.run(&format!("{field}[field.labels[0].textContent, field.type]")).await;
        assert_eq!(label, json!(["Sign in with your token", "password"]));
        assert_eq!(page.run(&format!("{field}field.autocomplete")).await, "current-password");
        page.picture("sign-in").await;
        sign_in(page, ADMIN_TOKEN).await;
        page.until("text('#user-name') === 'admin' && text('.tasks tbody th') === '0'").await;
        assert_eq!(page.run(KEPT).await, json!([0, 0, ""]));
        assert_eq!(page.run("return location.pathname + location.search").await, path);

        // An action, with the session alone.
        page.click("tbody tr:first-child .pick input").await;
        page.click(".toolbar [data-action=kick]").await;
        page.until("text('dialog .status').includes('Retry 1 task')").await;
        page.click("dialog [data-role=confirm]").await;
        page.until("text('#tab-ready .badge') === '1'").await;

        page.reload().await;
        page.until("text('#user-name') === 'admin' && text('.tasks tbody th') === '1'").await;
        page.picture("signed-in").await;

        page.click("#sign-out").await;
        page.until("text('#state') === 'token required'").await;
        page.until("document.querySelector('#sign-out').hidden").await;
        assert_eq!(page.text("#view").await, "", "nothing of the user stays");
        assert_eq!(page.run("return location.pathname + location.search").await, path);
        page.reload().await;
        page.until("text('#state') === 'token required'").await;
        assert_eq!(page.text("#user-name").await, "");
    })
    .await;
}

// A page that is only open refreshes itself every second; that must not keep the session.
#[tokio::test]
async fn a_session_that_has_ended_shows_the_form_and_then_the_same_view() {
    let clock = clock();
    let site = server(&clock, Vec::new()).await;
    site.bury("mail", &[(json!(1), "one")]).await;
    let path = "/tubes/mail?state=buried";
    let signed_in = "text('#state') === 'live' && text('.tasks tbody th') === '0'";
    browse(&format!("{}{path}", site.url()), async |page| {
        sign_in(page, ADMIN_TOKEN).await;
        page.until(signed_in).await;
        // An input of the user keeps it: the next request says so.
        clock.advance(Span::from_secs(IDLE_SECONDS - 1));
        refreshes(page).await;
        page.click("#tube-name").await;
        refreshes(page).await;
        clock.advance(Span::from_secs(IDLE_SECONDS - 1));
        refreshes(page).await;
        assert_eq!(page.text("#state").await, "live");
        // Refreshing the page does not.
        clock.advance(Span::from_secs(1));
        page.until("text('#token-error') === 'Your session has ended. Sign in again.'").await;
        page.until("text('#state') === 'token required'").await;
        assert_eq!(page.run("return document.activeElement.id").await, "token");
        assert_eq!(page.run("return location.pathname + location.search").await, path);
        page.picture("session-ended").await;
        sign_in(page, ADMIN_TOKEN).await;
        page.until(signed_in).await;
    })
    .await;
}

/// Waits until the page has sent two more requests: the first may have begun before.
async fn refreshes(page: &Page) {
    let count = "performance.getEntriesByType('resource').filter(({ name }) => name.includes('/v1/')).length";
    page.run("performance.clearResourceTimings()").await;
    page.until(&format!("{count} >= 4")).await;
}

// The page asked for the hosted services and for the sum of all tubes, which such a user may not see,
// and showed nothing but the refusal.
#[tokio::test]
async fn a_user_is_offered_what_it_may_do() {
    let ann = user("ann", ANN_TOKEN, Role::Read, "mail.*");
    let bob = user("bob", "the-token-of-bob", Role::Operate, "mail.*");
    let site = server(&clock(), vec![ann, bob]).await;
    for tube in ["mail.a", "orders"] {
        site.bury(tube, &[(json!(1), "one")]).await;
    }
    let offered = "document.querySelectorAll('[data-action], #pause:not([hidden]), #truncate:not([hidden])').length";
    browse(&site.url(), async |page| {
        sign_in(page, ANN_TOKEN).await;
        page.until("text('#user-name') === 'ann' && text('#state') === 'live'").await;
        assert_eq!(page.text("#totals .tubes dd").await, "1");
        page.click(".tubes .name").await;
        page.until("text('#task-list').includes('the role “operate” is needed')").await;
        assert_eq!(page.text("#state").await, "live");
        assert_eq!(page.run(&format!("return {offered}")).await, 0);
        page.picture("read-role").await;
        page.click("#tab-details").await;
        page.until("text('#state') === 'live' && text('#panel').includes('Options')").await;
        // What the address asks for may be refused all the same.
        page.open(&format!("{}/tubes/orders", site.url())).await;
        page.until("text('#problem').includes(\"the role 'read' for tube 'orders' is needed\")")
            .await;
        assert_eq!(page.text("#state").await, "not allowed");
        page.picture("not-allowed").await;
        page.click("#sign-out").await;
        sign_in(page, "the-token-of-bob").await;
        page.until("text('#user-name') === 'bob'").await;
        page.open(&format!("{}/tubes/mail.a?state=buried", site.url())).await;
        page.until(&format!("text('.tasks tbody th') === '0' && {offered} === 4")).await;
    })
    .await;
}

#[tokio::test]
async fn a_session_of_another_tab_is_used() {
    let site = server(&clock(), Vec::new()).await;
    site.bury("mail", &[(json!(1), "one")]).await;
    browse(&format!("{}/tubes/mail?state=buried", site.url()), async |page| {
        sign_in(page, ADMIN_TOKEN).await;
        page.until("text('.tasks tbody th') === '0'").await;
        // The other tab signs in again, so the value for actions that this page has is an old one.
        sign_in_in_another_tab(page, ADMIN_TOKEN).await;
        page.click("tbody tr:first-child .pick input").await;
        page.click(".toolbar [data-action=kick]").await;
        page.until("text('dialog .status').includes('Retry 1 task')").await;
        page.click("dialog [data-role=confirm]").await;
        page.until("text('#tab-ready .badge') === '1'").await;
    })
    .await;
}

// What a user had confirmed was done again with the rights of another one who had signed in in another tab.
#[tokio::test]
async fn an_action_is_not_done_by_another_user() {
    let grants = Grants::List(vec![Grant::roles(&[Role::Operate], vec![NamePattern::all()])]);
    let bob = User::with_token("bob", "the-token-of-bob", grants);
    let site = server(&clock(), vec![bob]).await;
    site.bury("mail", &[(json!(1), "one")]).await;
    browse(&format!("{}/tubes/mail?state=buried", site.url()), async |page| {
        sign_in(page, "the-token-of-bob").await;
        page.until("text('.tasks tbody th') === '0'").await;
        page.click("tbody tr:first-child .pick input").await;
        page.click(".toolbar [data-action=kick]").await;
        page.until("text('dialog .status').includes('Retry 1 task')").await;
        sign_in_in_another_tab(page, ADMIN_TOKEN).await;
        page.click("dialog [data-role=confirm]").await;
        page.until("text('#user-name') === 'admin' && text('.tasks tbody th') === '0'").await;
        assert_eq!(site.get("/v1/tubes/mail/tasks/0").await["state"], "buried");
    })
    .await;
}

#[tokio::test]
async fn a_guest_may_sign_in() {
    let read = Grants::List(vec![Grant::roles(&[Role::Read], vec![NamePattern::all()])]);
    let site = server(&clock(), vec![User::guest(read)]).await;
    site.post("/v1/tubes/mail/put", json!({ "data": 1 })).await;
    browse(&site.url(), async |page| {
        page.until("text('#state') === 'live' && text('.tubes .name') === 'mail'").await;
        page.until("document.querySelector('#sign-out').hidden").await;
        page.click("#sign-in").await;
        sign_in(page, ADMIN_TOKEN).await;
        page.until("text('#user-name') === 'admin' && text('.tubes .name') === 'mail'").await;
        page.until("document.querySelector('#sign-in').hidden").await;
        page.click("#sign-out").await;
        page.until("!document.querySelector('#sign-in').hidden && text('#state') === 'live'").await;
    })
    .await;
}

#[tokio::test]
async fn a_server_without_users_shows_no_user() {
    let site = DashboardServer::new(None).await;
    browse(&site.url(), async |page| {
        page.until("text('#state') === 'live'").await;
        let shown = "return ['#user', '#token-form'].map((place) => document.querySelector(place).offsetHeight)";
        assert_eq!(page.run(shown).await, json!([0, 0]));
        assert_eq!(page.run(KEPT).await, json!([0, 0, ""]));
        crate::assert_quiet(page).await;
    })
    .await;
}
