//! The checks and their order, each a function over what was seen: no files, no
//! children.

use serde::Serialize;

use super::expect::Expected;
use super::sharing::TaskOf;
use crate::inside::hands::{Ancestor, Hit};
use crate::inside::mps::Seen;
use crate::inside::scene::Scene;
use crate::inside::usage::Usage;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Fine,
    Wrong,
    /// It could not be looked at.
    Unseen,
    /// Worth knowing; nothing was compared.
    Note,
}

impl State {
    pub fn word(self) -> &'static str {
        match self {
            State::Fine => "ok",
            State::Wrong => "WRONG",
            State::Unseen => "unseen",
            State::Note => "note",
        }
    }

    pub fn is_doubtful(self) -> bool {
        matches!(self, State::Wrong | State::Unseen)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub state: State,
    pub says: String,
    /// Whether the whole answer is worth nothing without it.
    #[serde(skip)]
    pub needed: bool,
}

pub fn check(name: &'static str, state: State, says: impl Into<String>) -> Check {
    Check { name, state, says: says.into(), needed: matches!(name, "kernel" | "cuda" | "expect") }
}

/// What the checks rest on.
pub struct Evidence<'a> {
    pub scene: &'a Scene,
    pub usage: &'a Result<Usage, String>,
    /// This process and those above it that gpu-align's environment reached.
    pub above: &'a [Ancestor],
    pub hits: &'a [Hit],
    /// The MPS daemon that programs here would talk to.
    pub mps: &'a Seen,
    pub task_of: &'a dyn Fn(u32) -> Option<TaskOf>,
    pub other: Option<Other>,
    pub expected: Option<&'a Expected>,
}

/// The other process that is checked.
#[derive(Clone, Debug)]
pub struct Other {
    pub pid: u32,
    pub command: String,
    /// Whether what this process may open says nothing of that one.
    pub apart: bool,
}

pub fn checks(evidence: &Evidence) -> Vec<Check> {
    if evidence.is_apart() {
        return evidence.checks_from_afar();
    }
    let reading = evidence.scene.reading();
    let mut checks = vec![evidence.mark(), evidence.order(&reading)];
    checks.extend(evidence.variable());
    checks.push(evidence.list(&reading));
    checks.extend(evidence.parent());
    checks.push(evidence.kernel());
    checks.extend(evidence.numbers());
    checks.push(evidence.cuda());
    checks.extend(evidence.mps());
    checks.push(evidence.nvml());
    checks.extend(evidence.sharing());
    checks.extend(evidence.used());
    checks.extend(evidence.expect());
    checks
}

impl Evidence<'_> {
    fn is_apart(&self) -> bool {
        self.other.as_ref().is_some_and(|other| other.apart)
    }

    /// What its environment alone can tell of a process, and NVML of its pid.
    fn checks_from_afar(&self) -> Vec<Check> {
        let mut checks = vec![self.mark(), self.order(&self.scene.reading())];
        checks.extend([self.kernel(), self.cuda()]);
        checks.extend(self.used());
        checks.extend(self.expect());
        checks
    }
}
