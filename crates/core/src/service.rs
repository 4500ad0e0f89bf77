//! The interface of services that a server hosts beside its queue.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

/// The future of [`Service::stop`].
pub type StopFuture<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// The future of [`Service::tables`].
pub type TablesFuture<'a> = Pin<Box<dyn Future<Output = Vec<StatusTable>> + Send + 'a>>;

/// A service that runs by itself beside the queue. It starts when it is created.
pub trait Service: Debug + Send + Sync {
    /// Its name in metrics, JSON and on the dashboard.
    fn name(&self) -> &'static str;

    /// Whether it works.
    fn health(&self) -> Health;

    /// Its metrics.
    fn metrics(&self) -> Vec<Metric>;

    /// The status of each of its parts, for display.
    fn status(&self) -> Vec<PartStatus>;

    /// Tables about its work, for the dashboard; empty by default. May query other systems and take a moment.
    fn tables(&self) -> TablesFuture<'_> {
        Box::pin(std::future::ready(Vec::new()))
    }

    /// Stops it; ready when it has ended.
    fn stop(&self) -> StopFuture<'_>;
}

/// Whether a service works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It works.
    Healthy,
    /// It does not work, with the reason.
    Unhealthy(String),
}

/// A metric with a value for each set of labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its description.
    pub about: &'static str,
    /// Whether it only grows: a counter, not a gauge.
    pub grows: bool,
    /// The values, each with its labels.
    pub values: Vec<(Vec<(&'static str, String)>, f64)>,
}

/// The status of one part of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartStatus {
    /// The part.
    pub part: String,
    /// Its status as text.
    pub status: String,
}

/// A table about one part of a service, without any secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusTable {
    /// The part.
    pub part: String,
    /// What the table shows.
    pub title: &'static str,
    /// The column names.
    pub columns: Vec<&'static str>,
    /// The rows: a text for each column.
    pub rows: Vec<Vec<String>>,
}
