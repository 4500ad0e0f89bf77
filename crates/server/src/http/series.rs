//! Shows time series of a tube, or of all tubes together.

use axum::http::Method;
use axum::response::Response;
use serde::Deserialize;
use taskyard_core::access::{AccessTarget, AccessVerb};
use taskyard_core::{Error, Span, Timestamp, TubeName};
use taskyard_engine::{Depth, Percentiles, Series, SeriesPoint, SeriesRequest, SeriesStart, Step};
use taskyard_wire::Code;
use taskyard_wire::http::{PercentilesAnswer, SeriesAnswer};

use super::request::QueryParams;
use super::route::QueryField;
use super::tubes::infos;
use super::{Refusal, RequestApp, Route, ok};

/// The query parameters.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SeriesQuery {
    tube: Option<String>,
    from: Option<f64>,
    #[serde(default)]
    step: StepName,
}

/// The lengths of intervals, as the query names them.
#[derive(Clone, Copy, Default, Deserialize)]
enum StepName {
    #[default]
    #[serde(rename = "1s")]
    Second,
    #[serde(rename = "1m")]
    Minute,
}

/// The endpoints of this file.
pub(crate) fn routes() -> Vec<Route> {
    let about = (
        "series",
        "Show rates, numbers of tasks, wait times and run times as this server saw them: the last \
         hour by second, or the last two days by minute",
    );
    let from = "The first moment, in seconds since the epoch, or before now if negative; the \
                earliest when absent";
    let step = "The length of an interval: `1s` (when absent) for the last hour, or `1m` for the \
                last two days";
    let tube = "The tube; when absent, the sum over all tubes that are not internal";
    let route = Route::new(Method::GET, "/v1/series", about, series)
        .query_param(QueryField::name("tube", tube))
        .query_param(QueryField::number("from", from))
        .query_param(QueryField::one_of("step", step, &["1s", "1m"]))
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
        StepName::Second => Step::Second,
        StepName::Minute => Step::Minute,
    };
    let target = tube.as_ref().map_or(AccessTarget::All, |tube| AccessTarget::Tube(tube.as_str()));
    app.require(AccessVerb::ShowTube, target)?;
    let request = SeriesRequest { tube, from, step };
    if let Some(found) = app.engine.series(request.clone()).await {
        return ok(&answer(&request, &found));
    }
    // A tube that was not used yet has no series, but it has tasks.
    let mut depth = Depth::default();
    if let Some(tube) = request.tube.clone() {
        let infos = infos(&app, Some(tube)).await?;
        depth = infos.first().map_or(depth, |info| Depth::of(&info.stats.tasks));
    }
    let sum = SeriesRequest { tube: None, ..request.clone() };
    let mut quiet = app.engine.series(sum).await.ok_or_else(turned_off)?;
    quiet.points.fill(SeriesPoint::quiet(depth));
    ok(&answer(&request, &quiet))
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

fn answer(request: &SeriesRequest, series: &Series) -> SeriesAnswer {
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
