//! `print=json`: what the block says, for programs.

use serde::Serialize;

use super::{MAX_BYTES, Outcome, Report, Task, bounded};
use crate::align::Caution;
use crate::device::Device;

impl Report<'_> {
    /// `print=json`: one object a line, one line a task, then one a note.
    pub fn json(&self) -> String {
        let mut text = String::new();
        let tasks = self.tasks.iter().filter_map(|task| self.json_line(task));
        for line in tasks.chain(self.notes_said().iter().map(|note| self.json_note(note))) {
            text = text + &line + "\n";
            if text.len() > MAX_BYTES {
                break;
            }
        }
        bounded(text, MAX_BYTES)
    }

    fn json_note(&self, note: &str) -> String {
        let version = env!("CARGO_PKG_VERSION");
        serde_json::json!({
            "gpu_align": version, "node": self.node, "step": self.step, "note": note
        })
        .to_string()
    }

    fn json_line(&self, task: &Task) -> Option<String> {
        #[derive(Serialize)]
        struct Seen<'a> {
            cuda: usize,
            card: usize,
            minor: u32,
            pci: String,
            numa: Option<u32>,
            uuid: String,
            model: &'a str,
            /// A slice's, like `1g.10gb`.
            #[serde(skip_serializing_if = "Option::is_none")]
            profile: Option<&'a str>,
        }
        #[derive(Serialize)]
        struct Line<'a> {
            gpu_align: &'a str,
            node: &'a str,
            step: Option<&'a str>,
            rank: u32,
            local: u32,
            mode: Option<String>,
            /// The `cuda` index of the own device.
            own: Option<usize>,
            devices: Vec<Seen<'a>>,
            left: Option<&'a str>,
            /// Several are parted by semicolons.
            caution: Option<String>,
        }
        let (plan, left) = match &task.outcome {
            Outcome::Aligned(plan) => (Some(plan), None),
            Outcome::Left(why) => (None, Some(why.as_str())),
            Outcome::Silent => return None,
        };
        let seen = |(cuda, &device): (usize, &Device)| {
            let card = self.inventory.card(device);
            Seen {
                cuda,
                card: device.card,
                minor: card.minor.0,
                pci: card.pci.to_string(),
                numa: card.numa,
                uuid: self.name(device),
                model: &card.model,
                profile: self.inventory.slice(device).map(|slice| slice.profile.as_str()),
            }
        };
        let cautions: Vec<String> = task.cautions.iter().map(Caution::to_string).collect();
        let line = Line {
            gpu_align: env!("CARGO_PKG_VERSION"),
            node: self.node,
            step: self.step,
            rank: task.rank,
            local: task.local,
            mode: plan.map(|plan| plan.layout.to_string()),
            own: plan.map(|plan| plan.own),
            devices: plan
                .map(|p| p.visible.iter().enumerate().map(seen).collect())
                .unwrap_or_default(),
            left,
            caution: (!cautions.is_empty()).then(|| cautions.join("; ")),
        };
        serde_json::to_string(&line).ok()
    }
}
