//! Signing in on the page and signing out, and what the page may know about its user.

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderMap, Method, Request as HttpRequest};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use taskyard_core::Error;
use taskyard_core::access::{AccessVerb as Verb, NamePattern, Permissions, VerbSet};
use taskyard_wire::Code;

use super::{Refusal, Route, ok};
use crate::app::{App, SharedApp};
use crate::auth::ShownTokens;
use crate::guard::log_in;
use crate::page_sessions::SessionHash;
use crate::users::{Principal, TokenHash};

/// The actions that the page offers or hides, and the right that each needs.
const ACTIONS: [(&str, Verb); 15] = [
    ("show_tube", Verb::ShowTube),
    ("show_server", Verb::ShowServer),
    ("show_workers", Verb::ShowWorkers),
    ("show_audit", Verb::ShowAudit),
    ("peek", Verb::Peek),
    ("show_holders", Verb::ShowHolders),
    ("put", Verb::Put),
    ("kick", Verb::Kick),
    ("release", Verb::ReleaseAll),
    ("bury", Verb::Bury),
    ("delete", Verb::Delete),
    ("truncate", Verb::Truncate),
    ("pause_tube", Verb::PauseTube),
    ("pause_schedule", Verb::PauseSchedule),
    ("set_schedule", Verb::SetSchedule),
];

/// Signs in. It has a secret, so it cannot be printed.
#[derive(Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct SignInRequest {
    /// The token of the user; not needed beside an Authorization header, which comes first.
    token: Option<String>,
}

/// The user that sends the request.
#[derive(Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct SessionAnswer {
    /// The name of the user; `guest` if the request has neither a token nor a session.
    user: String,
    /// Whether the server has users, so that signing in is possible.
    has_users: bool,
    /// What the user may do, as far as a page has to know it.
    rights: Vec<RightsAnswer>,
    /// The session, if the request belongs to one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(required = false))]
    session: Option<SessionDetails>,
}

/// Actions that are allowed on names.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct RightsAnswer {
    /// The actions.
    actions: Vec<String>,
    /// The names of tubes, semaphores and schedules; `*` stands for any text.
    names: Vec<String>,
}

/// A session of the page. It has a secret, so it cannot be printed.
#[derive(Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct SessionDetails {
    /// The value of the header `X-Taskyard-CSRF`, which each request with the cookie needs unless it
    /// is a GET or HEAD.
    csrf: String,
    /// How long the session lasts without use, in seconds.
    idle_max: f64,
    /// When the session ends if it is not used any more, in seconds from now.
    ends_in: f64,
}

/// The result of signing out.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct SignOutAnswer {
    /// Whether there was a session.
    ended: bool,
}

/// The endpoints of this file.
pub(crate) fn routes() -> Vec<Route> {
    let path = "/v1/session";
    let sign_in = ("sign_in", "Begin a session with a token; the answer sets its cookie");
    let show = ("show_session", "Show the user that sends the request, and its session");
    let sign_out = ("sign_out", "End the session of the cookie");
    vec![
        Route::new(Method::POST, path, sign_in, self::sign_in)
            .request_body::<SignInRequest>()
            .responds::<SessionAnswer>("The user, and the session unless the server has no users")
            .refuses([Code::Unauthorized])
            .open(),
        Route::new(Method::GET, path, show, self::show)
            .responds::<SessionAnswer>("The user")
            .refuses([Code::Unauthorized]),
        Route::new(Method::DELETE, path, sign_out, self::sign_out)
            .responds::<SignOutAnswer>("There is no session any more")
            .refuses([Code::Unauthorized]),
    ]
}

/// Whether this request shows or ends a session, or signs in.
pub(crate) fn is_session<B>(request: &HttpRequest<B>) -> bool {
    request.uri().path() == "/v1/session"
}

/// Whether this is the request that signs in, which cannot be authenticated yet.
pub(crate) fn is_sign_in<B>(request: &HttpRequest<B>) -> bool {
    request.method() == Method::POST && is_session(request)
}

async fn sign_in(State(app): State<SharedApp>, request: Request) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    let sent: SignInRequest = app.sign_in_reader.read(body).await?;
    if app.users.is_empty() {
        return ok(&SessionAnswer::new(&app, &app.users.guest()));
    }
    let tokens = match ShownTokens::read(&parts.headers) {
        ShownTokens::These(tokens) => tokens.into_iter().map(TokenHash::of).collect(),
        ShownTokens::Malformed => Vec::new(),
        ShownTokens::Missing => match &sent.token {
            Some(token) => vec![TokenHash::of(token.trim().as_bytes())],
            None => {
                let message = "a token is needed; send {\"token\": \"TOKEN\"}";
                return Err(Refusal::new(Code::Unauthorized, message));
            }
        },
    };
    let principal = log_in(&app, parts.extensions.get(), &tokens)?;
    let headers = &parts.headers;
    // The browser forgets the session that it had.
    for id in app.session_cookie.ids(headers).iter() {
        app.page_sessions.end(&SessionHash::of(id));
    }
    let opened = app.page_sessions.open(principal);
    let (id, principal) =
        opened.map_err(|error| Error::Store(format!("cannot make a session: {error}")))?;
    let mut response = ok(&SessionAnswer::new(&app, &principal))?;
    if let Some(cookie) = app.session_cookie.set(headers, id.text()) {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    Ok(response)
}

async fn show(
    State(app): State<SharedApp>,
    Extension(principal): Extension<Principal>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let mut response = ok(&SessionAnswer::new(&app, &principal))?;
    // A guest whose session has ended goes on without its cookie.
    let is_left = principal.session().is_none() && !app.session_cookie.ids(&headers).is_empty();
    if let Some(cookie) = app.session_cookie.remove(&headers).filter(|_| is_left) {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    Ok(response)
}

async fn sign_out(
    State(app): State<SharedApp>,
    Extension(principal): Extension<Principal>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let ended = principal.session().is_some_and(|session| app.page_sessions.end(session));
    let mut response = ok(&SignOutAnswer { ended })?;
    if let Some(cookie) = app.session_cookie.remove(&headers).filter(|_| ended) {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    Ok(response)
}

impl SessionAnswer {
    fn new(app: &App, principal: &Principal) -> Self {
        let info = principal.session().and_then(|session| app.page_sessions.info(session));
        SessionAnswer {
            user: principal.name().into(),
            has_users: !app.users.is_empty(),
            rights: rights(principal.permissions()),
            session: info.map(|info| SessionDetails {
                csrf: info.csrf.text().into(),
                idle_max: info.idle_max.as_secs_f64(),
                ends_in: info.ends_in.as_secs_f64(),
            }),
        }
    }
}

fn rights(permissions: &Permissions) -> Vec<RightsAnswer> {
    match permissions {
        Permissions::All => vec![RightsAnswer::new(VerbSet::ALL, &[NamePattern::all()])],
        Permissions::Some(list) => {
            list.iter().map(|one| RightsAnswer::new(one.verbs, &one.names)).collect()
        }
    }
}

impl RightsAnswer {
    fn new(verbs: VerbSet, names: &[NamePattern]) -> Self {
        let actions = ACTIONS.into_iter().filter(|(_, verb)| verbs.contains(*verb));
        RightsAnswer {
            actions: actions.map(|(name, _)| name.into()).collect(),
            names: names.iter().map(NamePattern::to_string).collect(),
        }
    }
}
