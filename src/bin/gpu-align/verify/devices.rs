//! What the kernel, CUDA and NVML really give, against each other and against the
//! list.

use gpu_align::device::{Device, Uuid};

use super::checks::{Check, Evidence, Other, State, check};
use super::expect::Expected;
use super::sharing::held;
use crate::inside::screen::count;
use crate::inside::usage::CardUse;

impl Evidence<'_> {
    /// Slurm's numbers, where they cannot be looked up.
    pub fn numbers(&self) -> Option<Check> {
        Some(check("slurm", State::Unseen, self.scene.unread_numbers()?))
    }

    pub fn kernel(&self) -> Check {
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
            Some(uuid) if !self.scene.knows_uuids() => check(
                "kernel",
                State::Unseen,
                format!(
                    "{text}, and whether {uuid} is among them cannot be told: not all of their \
                     UUIDs are known here"
                ),
            ),
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

    pub fn cuda(&self) -> Check {
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
            let mps = match self.daemon() {
                Some(daemon) if there.len() < wanted.len() => format!(
                    "; {daemon}, gives its clients no other cards than its own: name cards by UUID \
                     (ids=uuid), or start it with all of them"
                ),
                _ => String::new(),
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

    pub fn nvml(&self) -> Check {
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
    pub fn used(&self) -> Option<Check> {
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
        if *apart || self.scene.inventory.is_err() {
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

    pub fn expect(&self) -> Option<Check> {
        let expected = self.expected?;
        let devices = match &self.scene.cuda {
            Ok(answer) if answer.is_answer() => &answer.devices,
            _ => {
                let text = format!("expected {expected}, and CUDA could not be asked");
                return Some(check("expect", State::Unseen, text));
            }
        };
        if matches!(expected, Expected::Ranks(_)) && self.scene.inventory.is_err() {
            let text = format!("expected {expected}, and which cards the node has is not known");
            return Some(check("expect", State::Unseen, text));
        }
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
