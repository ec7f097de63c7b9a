//! The checks, each a function over what was seen: no files, no children.

use gpu_align::cuda::visible::{End, Reading, Why};
use gpu_align::device::{Device, Uuid};
use serde::Serialize;

use super::expect::Expected;
use super::sharing::{TaskOf, held};
use crate::inside::hands::{Ancestor, Hit, likely};
use crate::inside::scene::{ORDER, PCI_ORDER, Scene, VISIBLE};
use crate::inside::screen::count;
use crate::inside::usage::{CardUse, Usage};

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

/// Whether CUDA_VISIBLE_DEVICES is no longer what gpu-align made it: it selects
/// other devices, or its list ends early, which gpu-align's never does.
pub fn was_changed(scene: &Scene) -> bool {
    let whole = scene.reading().end == End::Whole;
    scene.given().is_some_and(|given| !whole || selected(scene) != given)
}

fn selected(scene: &Scene) -> Vec<Uuid> {
    scene.selected().iter().filter_map(|device| scene.uuid(*device)).collect()
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

    /// Slurm's numbers, where they cannot be looked up.
    fn numbers(&self) -> Option<Check> {
        Some(check("slurm", State::Unseen, self.scene.unread_numbers()?))
    }

    /// Whether gpu-align was here at all.
    fn mark(&self) -> Check {
        let env = &self.scene.env;
        match (env.get("GPU_ALIGN_VERSION"), env.get("GPU_ALIGN_MODE")) {
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

    fn order(&self, reading: &Reading) -> Check {
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
    fn variable(&self) -> Option<Check> {
        let given = self.scene.given()?;
        let now = self.scene.env.get(VISIBLE);
        let selected = selected(self.scene);
        if !was_changed(self.scene) {
            let text = format!(
                "CUDA_VISIBLE_DEVICES selects what gpu-align gave: {}",
                count(given.len(), "device")
            );
            return Some(check("variable", State::Fine, text));
        }
        let was = self.value_given(&given);
        let shown = now.map_or("unset".to_owned(), |now| match now {
            "" => "empty".to_owned(),
            now => long(now),
        });
        let hand = likely(self.above, self.hits, VISIBLE, now);
        let what = match was == shown {
            // The value is the same, its meaning is not.
            true => format!("CUDA_VISIBLE_DEVICES={shown} no longer selects what gpu-align gave"),
            false => format!(
                "CUDA_VISIBLE_DEVICES changed after gpu-align: {was} -> {shown}; {}; the likely \
                 hand: {hand}",
                count(selected.len(), "usable card")
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
    fn list(&self, reading: &Reading) -> Check {
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

    /// A whole card's name where its slices are what can be used.
    fn parent(&self) -> Option<Check> {
        let cards = self.scene.cards();
        let list = self.scene.env.get(VISIBLE)?;
        let entry = list.split(',').find(|entry| {
            let uuid = entry.parse::<Uuid>().ok();
            let is = |card: &gpu_align::device::Card| {
                card.uuid.is_some() && card.uuid == uuid && !card.slices.is_empty()
            };
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

    fn kernel(&self) -> Check {
        if let Err(why) = &self.scene.inventory {
            return check("kernel", State::Unseen, why.clone());
        }
        let cards = self.scene.cards();
        let of = cards.devices().count();
        let text = format!(
            "this process may open {} of {}",
            self.scene.reach.len(),
            count(
                of,
                if self.scene.reach.iter().any(|d| d.slice.is_some()) { "device" } else { "card" }
            )
        );
        let lost = self.scene.given().unwrap_or_default();
        let lost = lost.iter().find(|uuid| {
            !self.scene.reach.iter().any(|d| self.scene.uuid(*d).as_ref() == Some(*uuid))
        });
        match lost {
            Some(uuid) => check(
                "kernel",
                State::Wrong,
                format!(
                    "{text}, and not {uuid}, which gpu-align gave; this process was moved to \
                     another job or container, or the card was lost"
                ),
            ),
            None => check("kernel", State::Fine, text),
        }
    }

    fn cuda(&self) -> Check {
        let answer = match &self.scene.cuda {
            Ok(answer) if answer.is_answer() => answer,
            Ok(answer) => {
                let why = answer.error.as_ref().map(ToString::to_string).unwrap_or_default();
                return check("cuda", State::Unseen, why);
            }
            Err(why) => return check("cuda", State::Unseen, why.clone()),
        };
        let there = answer.uuids();
        let named = self.scene.selected();
        let wanted: Vec<Uuid> = named.iter().filter_map(|d| self.scene.uuid(*d)).collect();
        let seen: Vec<String> = answer
            .devices
            .iter()
            .enumerate()
            .map(|(index, device)| {
                let rank = self.scene.device_of(device).map(|d| format!(" card {}", d.card));
                format!("cuda:{index} {}{} {}", device.pci, rank.unwrap_or_default(), device.uuid)
            })
            .collect();
        let seen = match &answer.error {
            Some(error) => format!("no device: {error}"),
            None if seen.is_empty() => "no device".to_owned(),
            None => seen.join(", "),
        };
        let known = self.scene.inventory.is_ok();
        let slices = named.iter().any(|device| device.slice.is_some());
        let one_slice = slices && !there.is_empty() && there.iter().all(|u| wanted.contains(u));
        if known && there != wanted && one_slice {
            let text = format!(
                "{seen}; of the {} that the list names CUDA gives a process no more slices than this",
                wanted.len()
            );
            return check("cuda", State::Fine, text);
        }
        if known && there != wanted {
            let mps = match self.scene.env.get("CUDA_MPS_PIPE_DIRECTORY") {
                Some(_) if there.len() < wanted.len() => {
                    "; the MPS daemon was started with fewer cards, name cards by UUID (ids=uuid)"
                }
                _ => "",
            };
            return check(
                "cuda",
                State::Wrong,
                format!("{seen}, where the list names {}{mps}", self.names(&named)),
            );
        }
        match there.is_empty() {
            true => check("cuda", State::Wrong, seen),
            false => check("cuda", State::Fine, seen),
        }
    }

    fn names(&self, devices: &[Device]) -> String {
        let name = |device: &Device| {
            let uuid = self.scene.uuid(*device);
            uuid.map_or_else(|| self.scene.cards().card(*device).pci.to_string(), |u| u.to_string())
        };
        match devices.is_empty() {
            true => "none".to_owned(),
            false => devices.iter().map(name).collect::<Vec<_>>().join(", "),
        }
    }

    fn mps(&self) -> Option<Check> {
        self.scene.env.get("CUDA_MPS_PIPE_DIRECTORY")?;
        let list = self.scene.env.get(VISIBLE)?;
        let indices = !list.starts_with("GPU-") && !list.starts_with("MIG-");
        indices.then(|| {
            check(
                "mps",
                State::Note,
                "under an MPS daemon indices count within the daemon's own list; name cards by \
                 UUID (ids=uuid)",
            )
        })
    }

    fn nvml(&self) -> Check {
        let usage = match self.usage {
            Ok(usage) => usage,
            Err(why) => return check("nvml", State::Unseen, why.clone()),
        };
        if let Some(silent) = usage.silent.first() {
            let text = format!("NVML cannot speak of {silent}; ask the admin whether it was lost");
            return check("nvml", State::Wrong, text);
        }
        let text = format!("NVML lists {}", count(usage.cards.len(), "card"));
        if self.scene.inventory.is_err() {
            return check("nvml", State::Note, text);
        }
        let mut open: Vec<usize> = self.scene.reach.iter().map(|device| device.card).collect();
        open.dedup();
        let open: Vec<_> = open.iter().map(|&r| self.scene.cards().cards()[r].pci).collect();
        let listed = |pci| usage.cards.iter().any(|card| card.pci == pci);
        match open.iter().find(|pci| !listed(**pci)) {
            Some(pci) => check(
                "nvml",
                State::Wrong,
                format!(
                    "{text} and not {pci}, which can be opened; ask the admin whether it was lost"
                ),
            ),
            None => check("nvml", State::Fine, format!("{text}, those that can be opened")),
        }
    }

    /// The cards that the other process really holds.
    fn used(&self) -> Option<Check> {
        let Other { pid, command, apart } = self.other.as_ref()?;
        let usage = self.usage.as_ref().ok()?;
        let holds = |card: &&CardUse| {
            held(card).iter().any(|(_, holders)| holders.iter().any(|h| h.pid == *pid))
        };
        let cards: Vec<&CardUse> = usage.cards.iter().filter(holds).collect();
        if cards.is_empty() {
            let text = format!("process {pid} ('{command}') holds no card that NVML lists here");
            return Some(check("used", State::Note, text));
        }
        let selected = self.scene.selected();
        let selected: Vec<_> = selected.iter().map(|d| self.scene.cards().card(*d).pci).collect();
        let name = |card: &&CardUse| {
            let uuid = card.uuid.as_ref().map(|uuid| format!(" {uuid}")).unwrap_or_default();
            format!("{}{uuid}", card.pci)
        };
        let names: Vec<String> = cards.iter().map(name).collect();
        let text = format!("process {pid} ('{command}') holds {}", names.join(", "));
        if *apart {
            return Some(check("used", State::Note, text));
        }
        match cards.iter().find(|card| !selected.contains(&card.pci)) {
            Some(card) => Some(check(
                "used",
                State::Wrong,
                format!(
                    "{text}; {} is not in the list that it was started with: the program changed \
                     CUDA_VISIBLE_DEVICES itself before it used CUDA",
                    card.pci
                ),
            )),
            None => Some(check("used", State::Fine, text)),
        }
    }

    fn expect(&self) -> Option<Check> {
        let expected = self.expected?;
        let devices = match &self.scene.cuda {
            Ok(answer) if answer.is_answer() => &answer.devices,
            _ => {
                let text = format!("expected {expected}, and CUDA could not be asked");
                return Some(check("expect", State::Unseen, text));
            }
        };
        Some(match expected.compare(self.scene, devices) {
            Ok(()) => check("expect", State::Fine, format!("CUDA enumerates {expected}")),
            Err(there) => check(
                "expect",
                State::Wrong,
                format!("expected {expected}, and CUDA enumerates {there}"),
            ),
        })
    }
}

fn entries(usable: usize, of: usize) -> String {
    let of = count(of, "entry").replace("entrys", "entries");
    format!("{usable} of {of} usable")
}

fn clip(text: &str) -> String {
    gpu_align::device::clip(text)
}

/// A list of several UUIDs stays whole; a stranger's text does not fill the log.
fn long(text: &str) -> String {
    const LONGEST: usize = 400;
    text.chars().take(LONGEST).map(|c| if c.is_control() { '?' } else { c }).collect()
}
