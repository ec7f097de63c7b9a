//! What Slurm's positions mean on this node, for the Prolog: it runs outside of
//! any cgroup, so the kernel cannot be asked.
//!
//! Invariant: a position names a card only where nothing speaks for another.
//! slurmd keeps the list of its start, so under AutoDetect the cards that are
//! there today may be fewer than those that it counted.

use gpu_align::align::allotment::{Facts, Reading, allotment};
use gpu_align::device::{Card, Device, Inventory, PciAddress};
use gpu_align::slurm::gres_conf::{AutoDetect, GresError};
use gpu_align::slurm::gres_list::GresList;

/// A node's gres list; `None` where no gres.conf was found.
pub type Listed = Result<Option<GresList>, GresError>;

/// What a position means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    Device(Device),
    /// A card that was there earlier in this boot.
    Gone(PciAddress),
    /// No card of this node.
    Nothing,
    /// It cannot be told.
    Unknown,
}

/// The node's cards, as far as they are known.
pub struct Cards {
    /// Those that are there.
    pub inventory: Inventory,
    /// Those that were there earlier in this boot.
    pub gone: Vec<Card>,
    /// Whether the slices of every card that is cut are known.
    pub slices_known: bool,
}

pub struct Numbering {
    /// The cards that are there.
    inventory: Inventory,
    slices_known: bool,
    list: Listed,
    /// The same with the cards that were there earlier in this boot; `None`
    /// where none is gone.
    before: Option<(Inventory, Listed)>,
    /// Whether cgroup.conf constrains devices: then a position is what gres.conf
    /// says, else what the neighbours take it for (design rule 2).
    constrained: bool,
    /// How many GPUs slurm.conf counts here; `None` where it does not name the node.
    configured: Option<usize>,
}

impl Numbering {
    /// `list` reads the gres list over an inventory.
    pub fn new(
        cards: Cards,
        constrained: bool,
        configured: Option<usize>,
        list: impl Fn(&Inventory) -> Listed,
    ) -> Numbering {
        let Cards { inventory, gone, slices_known } = cards;
        let before = (!gone.is_empty()).then(|| {
            let before = Inventory::new([inventory.cards(), &gone].concat());
            let list = list(&before);
            (before, list)
        });
        let list = list(&inventory);
        Numbering { inventory, slices_known, list, before, constrained, configured }
    }

    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    pub fn list(&self) -> &Listed {
        &self.list
    }

    pub fn configured(&self) -> Option<usize> {
        self.configured
    }

    /// Whether cards belong here, whatever is there: slurm.conf counts some or,
    /// where it does not name the node, gres.conf names some or there were some.
    pub fn expects_cards(&self) -> bool {
        match self.configured {
            Some(count) => count > 0,
            None => matches!(&self.list, Ok(Some(_))) || self.before.is_some(),
        }
    }

    pub fn constrained(&self) -> bool {
        self.constrained
    }

    pub fn slices_known(&self) -> bool {
        self.slices_known
    }

    pub fn meaning(&self, position: u32) -> Meaning {
        let list = match &self.list {
            Ok(Some(list)) if list.autodetect() == AutoDetect::Off => list,
            // Slices have positions of their own.
            _ if !self.slices_known => return Meaning::Unknown,
            Ok(Some(list)) if self.before.is_some() => {
                return self.where_lists_agree(Some(list), position);
            }
            Ok(Some(list)) => list,
            Err(GresError::CardsGone { .. }) => return self.where_lists_agree(None, position),
            Ok(None) | Err(_) => return self.without_list(position),
        };
        let device = match self.constrained {
            true => list.device(position),
            false => self.as_neighbours_read_it(Some(list), position),
        };
        match device {
            Some(device) => Meaning::Device(device),
            None if list.is_slice(position) => Meaning::Unknown,
            None => self.gone_or_nothing(position),
        }
    }

    /// Under AutoDetect positions close up behind a card that is gone when slurmd
    /// starts again, and nobody says whether it did.
    fn where_lists_agree(&self, now: Option<&GresList>, position: u32) -> Meaning {
        let Some(before) = self.before_says(position) else { return Meaning::Unknown };
        match now.map(|list| list.device(position).map_or(Meaning::Nothing, Meaning::Device)) {
            Some(now) if now != before => Meaning::Unknown,
            _ => before,
        }
    }

    fn gone_or_nothing(&self, position: u32) -> Meaning {
        match self.before_says(position) {
            Some(Meaning::Gone(pci)) => Meaning::Gone(pci),
            _ => Meaning::Nothing,
        }
    }

    /// What a position meant while all cards were there, in today's ranks.
    fn before_says(&self, position: u32) -> Option<Meaning> {
        let (inventory, Ok(Some(list))) = self.before.as_ref()? else { return None };
        let Some(device) = list.device(position) else { return Some(Meaning::Nothing) };
        let pci = inventory.card(device).pci;
        let rank = self.inventory.cards().iter().position(|card| card.pci == pci);
        Some(rank.map_or(Meaning::Gone(pci), |card| Meaning::Device(Device { card, ..device })))
    }

    /// Without a list a number is a rank for jobs that see every card. Where
    /// devices are constrained only gres.conf knows the order of several cards.
    fn without_list(&self, position: u32) -> Meaning {
        let cards = self.inventory.cards();
        let is_whole = self.before.is_none()
            && self.configured == Some(cards.len())
            && cards.iter().all(|card| card.slices.is_empty());
        match is_whole && (!self.constrained || cards.len() == 1) {
            true => {
                self.as_neighbours_read_it(None, position).map_or(Meaning::Nothing, Meaning::Device)
            }
            false => Meaning::Unknown,
        }
    }

    fn as_neighbours_read_it(&self, list: Option<&GresList>, position: u32) -> Option<Device> {
        let everything: Vec<Device> = self.inventory.devices().collect();
        let positions = list.map(GresList::devices);
        let step = [position];
        let facts = Facts {
            inventory: &self.inventory,
            reach: &everything,
            positions: positions.as_deref(),
            cards_gone: false,
            step: Some(&step),
            count: None,
            task: None,
            first_place: None,
            named: None,
            reading: Reading::Rank,
        };
        // A node with a single card counts as constrained in there.
        match everything.as_slice() {
            [only] => (position == 0).then_some(*only),
            _ => allotment(&facts).ok()??.devices.first().copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::tests::inv8p;

    /// Position → what it means, of INV8P without the card of rank 2.
    fn meanings(gres: &str, count: &str, constrained: bool) -> Vec<Meaning> {
        let mut left = inv8p().cards().to_vec();
        let gone = [left.remove(2)];
        let slurm = format!("NodeName=n1 Gres=gpu:{count}");
        let stat = |file: &str| Some((195, file.trim_start_matches("/dev/nvidia").parse().ok()?));
        let list =
            |known: &Inventory| GresList::from_text(gres, &slurm, "n1", &stat, known).map(Some);
        let configured = count.parse().ok();
        let cards = Cards { gone: gone.to_vec(), ..whole(left) };
        let numbering = Numbering::new(cards, constrained, configured, list);
        (0..8).map(|position| numbering.meaning(position)).collect()
    }

    /// Nothing is gone and nothing cut.
    fn whole(cards: Vec<Card>) -> Cards {
        Cards { inventory: Inventory::new(cards), gone: Vec::new(), slices_known: true }
    }

    /// Ranks after the loss.
    fn devices(ranks: &[usize]) -> Vec<Meaning> {
        ranks.iter().map(|&rank| Meaning::Device(Device::whole(rank))).collect()
    }

    fn lost() -> Vec<Meaning> {
        vec![Meaning::Gone("0000:41:00.0".parse().unwrap())]
    }

    #[test]
    fn fc_41_under_autodetect_positions_are_those_of_slurmds_start() {
        for constrained in [true, false] {
            let found = meanings("AutoDetect=nvml", "8", constrained);
            assert_eq!(found, [devices(&[0, 1]), lost(), devices(&[2, 3, 4, 5, 6])].concat());
        }
    }

    #[test]
    fn fc_41_where_slurmd_may_have_started_since_only_what_is_sure_is_told() {
        // slurm.conf does not count a dynamic node's GPUs.
        let found = meanings("AutoDetect=nvml", "0", true);
        assert_eq!(found, [devices(&[0, 1]), vec![Meaning::Unknown; 6]].concat());
    }

    #[test]
    fn fc_41_files_do_not_shift_and_the_lost_one_is_named() {
        for constrained in [true, false] {
            let found = meanings("Name=gpu File=/dev/nvidia[0-7]", "8", constrained);
            assert_eq!(found, [devices(&[5, 6, 3, 4, 0, 1]), lost(), devices(&[2])].concat());
        }
    }

    #[test]
    fn without_a_list_a_number_is_a_rank_only_if_no_card_is_missing() {
        let meaning = |configured, constrained| {
            let none = |_: &Inventory| Ok(None);
            let cards = whole(inv8p().cards().to_vec());
            Numbering::new(cards, constrained, configured, none).meaning(5)
        };
        assert_eq!(meaning(Some(8), false), Meaning::Device(Device::whole(5)));
        assert_eq!(meaning(Some(9), false), Meaning::Unknown);
        assert_eq!(meaning(None, false), Meaning::Unknown);
        assert_eq!(meaning(Some(8), true), Meaning::Unknown);
    }

    #[test]
    fn slices_that_nobody_names_are_unknown_and_no_missing_cards() {
        let stat = |file: &str| match file {
            "/dev/nvidia4" => Some((195, 4)),
            _ => Some((239, 12)),
        };
        let gres = "Name=gpu MultipleFiles=/dev/nvidia4,/dev/nvidia-caps/nvidia-cap[12-13]";
        for gres in [gres, "AutoDetect=nvml"] {
            let list =
                |known: &Inventory| GresList::from_text(gres, "", "n1", &stat, known).map(Some);
            for constrained in [true, false] {
                let cards = Cards { slices_known: false, ..whole(inv8p().cards().to_vec()) };
                let numbering = Numbering::new(cards, constrained, None, list);
                assert_eq!(numbering.meaning(0), Meaning::Unknown, "{gres} {constrained}");
            }
        }
    }
}
