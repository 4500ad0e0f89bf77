//! Shows time series of a tube, or of all tubes together.

use axum::http::Method;
use axum::response::Response;
use taskyard_core::access::{AccessTarget, AccessVerb};
use taskyard_core::{Error, Span, Timestamp, TubeName};
use taskyard_engine::{Depth, Percentiles, Series, SeriesPoint, SeriesRequest, SeriesStart, Step};
use taskyard_wire::Code;
use taskyard_wire::http::{PercentilesAnswer, SeriesAnswer, SeriesQuery, SeriesStep};

use super::missing_servers::shown_missing;
use super::request::QueryParams;
use super::route::QueryField;
use super::series_sum;
use super::tubes::infos;
use super::{Refusal, RequestApp, Route, ok};

/// The endpoints of this file.
pub(crate) fn routes() -> Vec<Route> {
    let about = (
        "series",
        "Show rates, numbers of tasks, wait times and run times as this server saw them, or all \
         servers together: the last hour by second, or the last two days by minute",
    );
    let from = "The first moment, in seconds since the epoch, or before now if negative; the \
                earliest when absent";
    let step = "The length of an interval: `1s` (when absent) for the last hour, or `1m` for the \
                last two days";
    let tube = "The tube; when absent, the sum over all tubes that are not internal";
    let all = "Add the series of the other servers of the store that this one was started with \
               (`--peer`)";
    let passive = "Show only what the server has in memory, and read no tasks from the store for it: \
                   as peers ask";
    let route = Route::new(Method::GET, "/v1/series", about, series)
        .query_param(QueryField::name("tube", tube))
        .query_param(QueryField::number("from", from))
        .query_param(QueryField::one_of("step", step, &["1s", "1m"]))
        .query_param(QueryField::flag("all", all))
        .query_param(QueryField::flag("passive", passive))
        .responds::<SeriesAnswer>("The series")
        .refuses([Code::TubeNotFound])
        .uses_engine();
    vec![route]
}

async fn series(
    app: RequestApp,
    QueryParams(query): QueryParams<SeriesQuery>,
) -> Result<Response, Refusal> {
    let tube = query.tube.as_deref().map(TubeName::new).transpose()?;
    let from = query.from.map_or(Ok(SeriesStart::Oldest), start)?;
    let step = match query.step {
        SeriesStep::Second => Step::Second,
        SeriesStep::Minute => Step::Minute,
    };
    let target = tube.as_ref().map_or(AccessTarget::All, |tube| AccessTarget::Tube(tube.as_str()));
    app.require(AccessVerb::ShowTube, target)?;
    let own = own_series(&app, SeriesRequest { tube, from, step }, query.passive).await?;
    if !query.all {
        return ok(&own);
    }
    let mut peers = app.peers.series(app.user(), &query).await;
    peers.retain(|_, peer| series_sum::check(&own, peer, step.points_max()));
    let answers: Vec<_> = peers.answers.iter().map(|(_, answer)| answer).collect();
    let sum = series_sum::sum(&own, &answers);
    let servers = Some(peers.servers());
    ok(&SeriesAnswer { servers, missing: shown_missing(&app, peers.missing), ..sum })
}

/// The series of this server; a passive request reads nothing from the store.
async fn own_series(
    app: &RequestApp,
    request: SeriesRequest,
    is_passive: bool,
) -> Result<SeriesAnswer, Refusal> {
    if let Some(found) = found_series(app, request.clone(), is_passive).await {
        return Ok(answer(app, &request, &found));
    }
    // A tube that was not used yet has no series, but it has tasks.
    let mut depth = Depth::default();
    if let Some(tube) = request.tube.clone().filter(|_| !is_passive) {
        let infos = infos(app, Some(tube)).await?;
        depth = infos.first().map_or(depth, |info| Depth::of(&info.stats.tasks));
    }
    let sum = SeriesRequest { tube: None, ..request.clone() };
    let mut quiet = found_series(app, sum, is_passive).await.ok_or_else(turned_off)?;
    quiet.points.fill(SeriesPoint::quiet(depth));
    Ok(answer(app, &request, &quiet))
}

async fn found_series(
    app: &RequestApp,
    request: SeriesRequest,
    is_passive: bool,
) -> Option<Series> {
    match is_passive {
        true => app.engine.unobserved_series(request).await,
        false => app.engine.series(request).await,
    }
}

fn turned_off() -> Refusal {
    let message = "this server collects no time series; start it without --series-tubes 0";
    Error::Invalid(message.into()).into()
}

/// The moment that `from` means.
fn start(from: f64) -> Result<SeriesStart, Error> {
    let wrong = || {
        Error::Invalid(format!(
            "'from' is {from}; give seconds since the epoch, or a negative number of seconds \
             before now"
        ))
    };
    if from.is_finite() && from < 0.0 {
        return Ok(SeriesStart::Last(Span::from_secs_f64(-from).ok_or_else(wrong)?));
    }
    Ok(SeriesStart::At(Timestamp::from_secs_f64(from).ok_or_else(wrong)?))
}

fn answer(app: &RequestApp, request: &SeriesRequest, series: &Series) -> SeriesAnswer {
    let points = &series.points;
    let field = |of: fn(&SeriesPoint) -> u32| points.iter().map(of).collect();
    SeriesAnswer {
        tube: request.tube.as_ref().map(|tube| tube.as_str().to_owned()),
        step: request.step.seconds() as f64,
        from: series.from.as_secs_f64(),
        puts: field(|point| point.counts.puts),
        takes: field(|point| point.counts.takes),
        acks: field(|point| point.counts.acks),
        fails: field(|point| point.counts.fails),
        ready: field(|point| point.depth.ready),
        taken: field(|point| point.depth.taken),
        delayed: field(|point| point.depth.delayed),
        buried: field(|point| point.depth.buried),
        wait: percentiles(points, SeriesPoint::wait),
        run: percentiles(points, SeriesPoint::run),
        instance: Some(app.peers.own_instance().to_owned()),
        servers: None,
        missing: Vec::new(),
    }
}

fn percentiles(points: &[SeriesPoint], of: fn(&SeriesPoint) -> Percentiles) -> PercentilesAnswer {
    let mut answer = PercentilesAnswer::default();
    for point in points {
        let [p50, p90, p99] = match of(point) {
            Some(percentiles) => percentiles.map(|span| Some(span.as_secs_f64())),
            None => [None; 3],
        };
        answer.p50.push(p50);
        answer.p90.push(p90);
        answer.p99.push(p99);
    }
    answer
}
