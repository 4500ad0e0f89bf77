//! A queue that loses requests, loses replies or refuses commands, as a test demands.

use std::sync::{Arc, Mutex};

use taskyard::Execute;
use taskyard_core::{Command, Error, Reply, TubeName};

/// What happens to a command.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It is not executed, and there is no reply.
    NoReply,
    /// It is refused.
    Refuse(Error),
    /// It is executed, but the reply is this error.
    LoseReply(Error),
}

#[derive(Debug)]
struct Rule {
    verb: &'static str,
    tube: Option<&'static str>,
    fault: Fault,
    times: usize,
}

/// A queue with injected faults.
#[derive(Clone)]
pub struct FaultyQueue<E> {
    queue: E,
    rules: Arc<Mutex<Vec<Rule>>>,
    faults: Arc<Mutex<usize>>,
    commands: Arc<Mutex<Vec<&'static str>>>,
}

impl<E> FaultyQueue<E> {
    pub fn new(queue: E) -> Self {
        let (rules, faults, commands) = Default::default();
        FaultyQueue { queue, rules, faults, commands }
    }

    /// Applies the fault to the next `times` commands with this verb.
    pub fn fail_next(&self, verb: &'static str, times: usize, fault: Fault) {
        self.rules.lock().unwrap().push(Rule { verb, tube: None, fault, times });
    }

    /// Applies the fault to the next `times` commands with this verb on this tube.
    pub fn fail_next_of(&self, tube: &'static str, verb: &'static str, times: usize, fault: Fault) {
        self.rules.lock().unwrap().push(Rule { verb, tube: Some(tube), fault, times });
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.rules.lock().unwrap().clear();
    }

    /// How many commands had a fault.
    pub fn faults(&self) -> usize {
        *self.faults.lock().unwrap()
    }

    /// Waits until this many commands had a fault.
    pub async fn wait_for_faults(&self, times: usize) {
        while self.faults() < times {
            tokio::task::yield_now().await;
        }
    }

    /// Waits until this many commands with this verb were sent.
    pub async fn wait_for_commands(&self, verb: &str, times: usize) {
        while self.commands(verb) < times {
            tokio::task::yield_now().await;
        }
    }

    /// How many commands with this verb were sent.
    pub fn commands(&self, verb: &str) -> usize {
        self.commands.lock().unwrap().iter().filter(|sent| **sent == verb).count()
    }

    fn fault_of(&self, command: &Command) -> Option<Fault> {
        let mut rules = self.rules.lock().unwrap();
        let tube = tube_of(command).map(TubeName::as_str);
        let rule = rules.iter_mut().find(|rule| {
            let matches = rule.tube.is_none_or(|wanted| tube == Some(wanted));
            rule.times > 0 && rule.verb == command.verb() && matches
        })?;
        rule.times -= 1;
        *self.faults.lock().unwrap() += 1;
        Some(rule.fault.clone())
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

impl<E: Execute + Clone> Execute for FaultyQueue<E> {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        let mut replies = Vec::new();
        for command in commands {
            self.commands.lock().unwrap().push(command.verb());
            let fault = self.fault_of(&command);
            let execute = async || {
                let reply = self.queue.execute(vec![command.clone()]).await.pop();
                reply.unwrap_or(Err(Error::ShuttingDown))
            };
            replies.push(match fault {
                None => execute().await,
                Some(Fault::NoReply) => std::future::pending().await,
                Some(Fault::Refuse(error)) => Err(error),
                Some(Fault::LoseReply(error)) => {
                    drop(execute().await);
                    Err(error)
                }
            });
        }
        replies
    }
}
