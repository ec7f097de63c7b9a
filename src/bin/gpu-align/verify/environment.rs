//! What the environment says, against what gpu-align made of it and against the
//! cards that there are.

use gpu_align::cuda::visible::{End, Reading, Why};
use gpu_align::device::{Card, Uuid, clip};

use super::checks::{Check, Evidence, State, check};
use crate::inside::hands::likely;
use crate::inside::mps::{FOLDER, Seen};
use crate::inside::scene::{ORDER, PCI_ORDER, Scene, VISIBLE};
use crate::inside::screen::count;

/// Whether CUDA_VISIBLE_DEVICES is no longer what gpu-align made it: it selects
/// other devices, or its list ends early, which gpu-align's never does. `None`
/// where gpu-align gave no list, or where it cannot be told what this one names.
pub fn was_changed(scene: &Scene) -> Option<bool> {
    let given = scene.given()?;
    if !scene.knows_uuids() {
        let Some(list) = scene.env.get(VISIBLE).filter(|list| !list.is_empty()) else {
            return Some(true);
        };
        let named: Option<Vec<Uuid>> = list.split(',').map(|entry| entry.parse().ok()).collect();
        return Some(named? != given);
    }
    Some(scene.reading().end != End::Whole || selected(scene) != given)
}

fn selected(scene: &Scene) -> Vec<Uuid> {
    scene.selected().iter().filter_map(|device| scene.uuid(*device)).collect()
}

impl Evidence<'_> {
    /// Whether gpu-align was here at all.
    pub fn mark(&self) -> Check {
        let env = &self.scene.env;
        let said = |name| env.get(name).map(clip);
        match (said("GPU_ALIGN_VERSION"), said("GPU_ALIGN_MODE")) {
            (Some(version), Some(mode)) => {
                let text = format!("gpu-align {version} set this environment, mode {mode}");
                check("gpu-align", State::Fine, text)
            }
            (Some(version), None) => check(
                "gpu-align",
                State::Note,
                format!(
                    "gpu-align {version} was in doubt at launch and left CUDA_VISIBLE_DEVICES as \
                     Slurm made it; the job's log says why"
                ),
            ),
            (None, _) => check(
                "gpu-align",
                State::Note,
                "gpu-align set nothing here (GPU_ALIGN_VERSION is unset); ask for it with srun \
                 --gpu-align",
            ),
        }
    }

    pub fn order(&self, reading: &Reading) -> Check {
        let env = &self.scene.env;
        let now = env.get(ORDER);
        let shown = now.map_or("unset".to_owned(), |now| format!("'{}'", clip(now)));
        let unknown = now.is_some_and(|now| now != "FASTEST_FIRST" && now != PCI_ORDER);
        let unlike = {
            let cards = self.scene.reach.iter().map(|d| &self.scene.cards().card(*d).model);
            let mut models: Vec<&String> = cards.collect();
            models.dedup();
            models.len() > 1
        };
        let by_index = !reading.chosen.is_empty()
            && env.get(VISIBLE).is_none_or(|list| !list.starts_with(['G', 'M']));
        if now == Some(PCI_ORDER) {
            return check("order", State::Fine, "CUDA_DEVICE_ORDER is PCI_BUS_ID");
        }
        if unknown {
            return check(
                "order",
                State::Wrong,
                format!(
                    "CUDA_DEVICE_ORDER is {shown}, which CUDA does not know: it then finds no card \
                     at all; write PCI_BUS_ID"
                ),
            );
        }
        if env.get("GPU_ALIGN_VERSION").is_some() {
            let hand = likely(self.above, self.hits, ORDER, now);
            let text = format!(
                "CUDA_DEVICE_ORDER changed after gpu-align: PCI_BUS_ID -> {shown}; the likely \
                 hand: {hand}"
            );
            return check("order", State::Wrong, text);
        }
        match unlike && by_index {
            true => check(
                "order",
                State::Wrong,
                format!(
                    "CUDA_DEVICE_ORDER is {shown} and the cards differ: CUDA counts the fastest \
                     first, nvidia-smi by bus; set CUDA_DEVICE_ORDER=PCI_BUS_ID"
                ),
            ),
            false => check(
                "order",
                State::Note,
                format!("CUDA_DEVICE_ORDER is {shown}; PCI_BUS_ID gives nvidia-smi's order"),
            ),
        }
    }

    /// Whether CUDA_VISIBLE_DEVICES still selects what gpu-align gave.
    pub fn variable(&self) -> Option<Check> {
        let given = self.scene.given()?;
        let now = self.scene.env.get(VISIBLE);
        match was_changed(self.scene) {
            Some(true) => {}
            Some(false) => {
                let text = format!(
                    "CUDA_VISIBLE_DEVICES selects what gpu-align gave: {}",
                    count(given.len(), "device")
                );
                return Some(check("variable", State::Fine, text));
            }
            None => {
                let text = "whether CUDA_VISIBLE_DEVICES still selects what gpu-align gave cannot \
                            be told: the cards' UUIDs are not known here";
                return Some(check("variable", State::Unseen, text));
            }
        }
        let was = self.value_given(&given);
        let shown = now.map_or("unset".to_owned(), |now| match now {
            "" => "empty".to_owned(),
            now => long(now),
        });
        let hand = likely(self.above, self.hits, VISIBLE, now);
        let usable = match self.scene.knows_uuids() {
            true => format!("; {}", count(selected(self.scene).len(), "usable card")),
            false => String::new(),
        };
        let what = match was == shown {
            // The value is the same, its meaning is not.
            true => format!("CUDA_VISIBLE_DEVICES={shown} no longer selects what gpu-align gave"),
            false => format!(
                "CUDA_VISIBLE_DEVICES changed after gpu-align: {was} -> {shown}{usable}; the likely \
                 hand: {hand}"
            ),
        };
        Some(check("variable", State::Wrong, what))
    }

    /// The text that gpu-align gave, as a process above this one still has it;
    /// else in UUIDs, its default.
    fn value_given(&self, given: &[Uuid]) -> String {
        let now = self.scene.env.get(VISIBLE);
        let mut older = self.above.iter().rev().filter_map(|process| process.env.get(VISIBLE));
        let older = older.find(|value| Some(*value) != now).map(long);
        let uuids = || given.iter().map(Uuid::to_string).collect::<Vec<_>>().join(",");
        older.unwrap_or_else(uuids)
    }

    /// Where CUDA's reading of the list ends, and why.
    pub fn list(&self, reading: &Reading) -> Check {
        let Some(list) = self.scene.env.get(VISIBLE) else {
            let known = self.scene.inventory.is_ok();
            let counted = count(reading.chosen.len(), "device");
            let counted = if known { format!(", {counted}") } else { String::new() };
            let text = format!(
                "CUDA_VISIBLE_DEVICES is unset: CUDA counts all that can be opened{counted}"
            );
            return check("list", State::Fine, text);
        };
        let usable = reading.chosen.len();
        let remarks: Vec<String> = reading.remarks.iter().map(ToString::to_string).collect();
        let remarks = match remarks.is_empty() {
            true => String::new(),
            false => format!(" ({})", remarks.join("; ")),
        };
        match &reading.end {
            End::Whole => {
                check("list", State::Fine, format!("{}{remarks}", entries(usable, usable)))
            }
            End::At { at, of, why: Why::Empty, .. } if at + 1 == *of && usable > 0 => check(
                "list",
                State::Fine,
                format!("{}, then a trailing comma{remarks}", entries(usable, usable)),
            ),
            End::At { why: Why::Empty, of: 1, .. } => check(
                "list",
                State::Wrong,
                "CUDA_VISIBLE_DEVICES is empty: CUDA finds no card; unset it or ask Slurm for a card",
            ),
            End::At { at, field, why, .. } if self.is_blind_to(why) => check(
                "list",
                State::Unseen,
                format!(
                    "whether entry {at} '{field}' names a card cannot be told: which cards there \
                     are, or their UUIDs, is not known here"
                ),
            ),
            End::At { at, of, field, why } => check(
                "list",
                State::Wrong,
                format!(
                    "{}: CUDA's list ends at entry {at} '{field}': {why}{remarks}",
                    entries(usable, *of)
                ),
            ),
            End::Void { at, field, first } => check(
                "list",
                State::Wrong,
                format!(
                    "0 of {} usable: entry {at} '{}' names the same card as entry {first}, and \
                     CUDA then finds none at all; list each card once",
                    count(list.split(',').count(), "entry"),
                    field
                )
                .replace("entrys", "entries"),
            ),
        }
    }

    /// Whether an entry that names nothing may only seem so: the device that it
    /// would name is not known.
    fn is_blind_to(&self, why: &Why) -> bool {
        match why {
            Why::Index { index, .. } => *index >= 0 && self.scene.inventory.is_err(),
            Why::Unknown => !self.scene.knows_uuids(),
            _ => false,
        }
    }

    /// A whole card's name where its slices are what can be used.
    pub fn parent(&self) -> Option<Check> {
        let cards = self.scene.cards();
        let list = self.scene.env.get(VISIBLE)?;
        let entry = list.split(',').find(|entry| {
            let uuid = entry.parse::<Uuid>().ok();
            let is =
                |card: &Card| card.uuid.is_some() && card.uuid == uuid && !card.slices.is_empty();
            cards.cards().iter().any(is)
        })?;
        Some(check(
            "slice",
            State::Wrong,
            format!(
                "{entry} is a card in MIG mode: CUDA takes the first of its slices that can be \
                 opened; name the slice itself, MIG-…, as 'gpu-align show' lists it"
            ),
        ))
    }

    /// Indices under an MPS daemon, which counts the cards that it was started with.
    pub fn mps(&self) -> Option<Check> {
        if !self.scene.env.lists_indices() {
            return None;
        }
        let daemon = self.daemon()?;
        let text = format!(
            "under {daemon}, indices count within the daemon's own list; name cards by UUID \
             (ids=uuid)"
        );
        Some(check("mps", State::Note, text))
    }

    /// The MPS daemon that programs here run through.
    pub fn daemon(&self) -> Option<String> {
        match self.mps {
            Seen::Runs { .. } => self.mps.says(),
            Seen::Nothing => None,
            Seen::NotLooked(_) => self
                .scene
                .env
                .get(FOLDER)
                .map(|folder| format!("the MPS daemon of {}", clip(folder))),
        }
    }
}

fn entries(usable: usize, of: usize) -> String {
    let of = count(of, "entry").replace("entrys", "entries");
    format!("{usable} of {of} usable")
}

/// A list of several UUIDs stays whole; a stranger's text does not fill the log.
fn long(text: &str) -> String {
    const LONGEST: usize = 400;
    text.chars().take(LONGEST).map(|c| if c.is_control() { '?' } else { c }).collect()
}
