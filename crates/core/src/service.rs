//! What a server can host beside its queue: something that runs by itself and tells how it is.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

/// What a service promises to come.
pub type Stopping<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// What a service promises to show.
pub type Showing<'a> = Pin<Box<dyn Future<Output = Vec<Sheet>> + Send + 'a>>;

/// Something that runs by itself beside the queue. It starts when it is made.
pub trait Service: Debug + Send + Sync {
    /// Its name on every face of Taskyard.
    fn name(&self) -> &'static str;

    /// How it is.
    fn health(&self) -> Health;

    /// What it counts.
    fn metrics(&self) -> Vec<Metric>;

    /// What a person wants to see: a line for each of its parts.
    fn status(&self) -> Vec<Line>;

    /// Its work as tables, for a page; nothing unless it has some. May ask others, and so takes a moment.
    fn sheets(&self) -> Showing<'_> {
        Box::pin(std::future::ready(Vec::new()))
    }

    /// Ends it; ready when it has ended.
    fn stop(&self) -> Stopping<'_>;
}

/// How a service is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// All is well.
    Well,
    /// Something keeps it from its work.
    Troubled(String),
}

/// Something that is counted, in each of several parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// What it means.
    pub about: &'static str,
    /// Whether it only grows.
    pub grows: bool,
    /// The values, each with its labels.
    pub values: Vec<(Vec<(&'static str, String)>, f64)>,
}

/// What a person wants to see about one part of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The part.
    pub part: String,
    /// How it is, in words.
    pub words: String,
}

/// A table of texts about one part of a service, without anything secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sheet {
    /// The part.
    pub part: String,
    /// What the table shows.
    pub title: &'static str,
    /// The heads of its columns.
    pub heads: Vec<&'static str>,
    /// Its rows: a text for each column.
    pub rows: Vec<Vec<String>>,
}
