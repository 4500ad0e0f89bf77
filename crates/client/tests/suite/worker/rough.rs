//! A queue with a rough way to it: questions get lost, answers get lost, others are refused.

use std::sync::{Arc, Mutex};

use taskyard::Execute;
use taskyard_core::{Command, Error, Reply, TubeName};

/// What happens to a question.
#[derive(Clone, Debug)]
pub enum Way {
    /// Nobody ever hears of it, and there is no answer.
    Swallow,
    /// It is refused.
    Refuse(Error),
    /// It is done, but the answer is this.
    Misreport(Error),
}

#[derive(Debug)]
struct Rule {
    verb: &'static str,
    tube: Option<&'static str>,
    way: Way,
    times: usize,
}

/// A queue with a rough way to it.
#[derive(Clone)]
pub struct Rough<E> {
    queue: E,
    rules: Arc<Mutex<Vec<Rule>>>,
    hits: Arc<Mutex<usize>>,
    asked: Arc<Mutex<Vec<&'static str>>>,
}

impl<E> Rough<E> {
    pub fn new(queue: E) -> Self {
        Rough { queue, rules: Arc::default(), hits: Arc::default(), asked: Arc::default() }
    }

    /// So many of these questions go this way.
    pub fn next(&self, verb: &'static str, times: usize, way: Way) {
        self.rules.lock().unwrap().push(Rule { verb, tube: None, way, times });
    }

    /// The same for those about one tube.
    pub fn next_of(&self, tube: &'static str, verb: &'static str, times: usize, way: Way) {
        self.rules.lock().unwrap().push(Rule { verb, tube: Some(tube), way, times });
    }

    /// From now on all is well.
    pub fn heal(&self) {
        self.rules.lock().unwrap().clear();
    }

    /// How many questions went wrong.
    pub fn hits(&self) -> usize {
        *self.hits.lock().unwrap()
    }

    /// Waits until so many questions went wrong.
    pub async fn until_hit(&self, times: usize) {
        while self.hits() < times {
            tokio::task::yield_now().await;
        }
    }

    /// Waits until so many questions of this verb were asked.
    pub async fn until_asked(&self, verb: &str, times: usize) {
        while self.asked(verb) < times {
            tokio::task::yield_now().await;
        }
    }

    /// How many questions of this verb were asked.
    pub fn asked(&self, verb: &str) -> usize {
        self.asked.lock().unwrap().iter().filter(|asked| **asked == verb).count()
    }

    fn way_of(&self, command: &Command) -> Option<Way> {
        let mut rules = self.rules.lock().unwrap();
        let tube = tube_of(command).map(TubeName::as_str);
        let rule = rules.iter_mut().find(|rule| {
            let about = rule.tube.is_none_or(|wanted| tube == Some(wanted));
            rule.times > 0 && rule.verb == command.verb() && about
        })?;
        rule.times -= 1;
        *self.hits.lock().unwrap() += 1;
        Some(rule.way.clone())
    }
}

fn tube_of(command: &Command) -> Option<&TubeName> {
    match command {
        Command::Take(take) => Some(&take.tube),
        Command::Finish { tube, .. } | Command::Put { tube, .. } => Some(tube),
        Command::CreateTube { tube, .. } => Some(tube),
        _ => None,
    }
}

impl<E: Execute + Clone> Execute for Rough<E> {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        let mut replies = Vec::new();
        for command in commands {
            self.asked.lock().unwrap().push(command.verb());
            let way = self.way_of(&command);
            let ask = async || {
                let reply = self.queue.execute(vec![command.clone()]).await.pop();
                reply.unwrap_or(Err(Error::ShuttingDown))
            };
            replies.push(match way {
                None => ask().await,
                Some(Way::Swallow) => std::future::pending().await,
                Some(Way::Refuse(error)) => Err(error),
                Some(Way::Misreport(error)) => {
                    drop(ask().await);
                    Err(error)
                }
            });
        }
        replies
    }
}
