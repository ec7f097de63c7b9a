//! Random nodes and steps for the properties.

use std::collections::BTreeSet;
use std::fmt;

use gpu_align::align::allotment::Reading;
use gpu_align::align::policy::{Policy, Words};
use gpu_align::device::{Device, Inventory, Minor};
use gpu_align::launch::{Decision, Step};
use gpu_align::slurm::step::{Kind, Said};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use sim_node::{Card, DeviceFile, Node, Pci};

use crate::played::{Player, foreseen, inventory, play};

/// A node, and how its gres list numbers it.
#[derive(Clone)]
pub struct Site {
    /// In no order; some cards gone.
    pub node: Node,
    /// The gres list as minors, lost cards' included; `None`: not known.
    pub gres: Option<Vec<u32>>,
    pub reading: Reading,
}

/// On one line each: a failing case is to be read.
impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut cards: Vec<&Card> = self.node.cards.iter().collect();
        cards.sort_by_key(|card| card.pci);
        let card =
            |c: &&Card| format!("{} {}{}", c.pci, c.minor, if c.gone { " gone" } else { "" });
        let cards: Vec<String> = cards.iter().map(card).collect();
        write!(f, "{cards:?} gres {:?} {:?}", self.gres, self.reading)
    }
}

/// A step on one node of a site.
#[derive(Clone, Debug)]
pub struct World {
    pub site: Site,
    pub words: String,
    pub step: Vec<(&'static str, String)>,
    pub tasks: Vec<Task>,
}

#[derive(Clone, Debug)]
pub struct Task {
    /// Minors.
    pub opens: BTreeSet<u32>,
    pub env: Vec<(&'static str, String)>,
}

impl Site {
    pub fn inventory(&self) -> Inventory {
        inventory(&self.node)
    }

    pub fn positions(&self) -> Option<Vec<Option<Device>>> {
        let known = self.inventory();
        let device = |minor: &u32| known.rank_of_minor(Minor(*minor)).map(Device::whole);
        Some(self.gres.as_ref()?.iter().map(device).collect())
    }

    /// Minors of the cards that the driver lists, in PCI order.
    pub fn minors(&self) -> Vec<u32> {
        self.inventory().cards().iter().map(|card| card.minor.0).collect()
    }
}

impl World {
    pub fn plan(&self) -> Vec<Result<Option<Decision>, String>> {
        self.with_players(|players| play(&self.step(), players))
    }

    /// What each task takes as foreseen.
    pub fn foreseen(&self) -> Vec<Option<Decision>> {
        self.with_players(|players| foreseen(&self.step(), players))
    }

    fn step(&self) -> Step {
        Step {
            node: "n1".into(),
            name: "1.0".into(),
            policy: Policy::resolve([&self.words.parse::<Words>().unwrap()]),
            inventory: Ok(self.site.inventory()),
            gap: None,
            positions: self.site.positions(),
            cards_gone: false,
            said: Said::read(Kind::Normal, |name| value(&self.step, name)),
            reading: self.site.reading,
            tasks: self.tasks.len(),
        }
    }

    /// What CUDA makes of a decision in one task.
    pub fn cuda(&self, local: usize, decision: &Decision) -> Vec<String> {
        self.with_players(|players| players[local].cuda(&self.site.node, decision))
    }

    fn with_players<T>(&self, act: impl FnOnce(&[Player]) -> T) -> T {
        let gone = |minor| self.site.node.cards.iter().any(|c| c.minor == minor && c.gone);
        let opens: Vec<_> = self
            .tasks
            .iter()
            .map(|task| {
                move |file| match file {
                    DeviceFile::Card(minor) => task.opens.contains(&minor) && !gone(minor),
                    DeviceFile::Cap(_) => false,
                }
            })
            .collect();
        let reads: Vec<_> = self
            .tasks
            .iter()
            .map(|task| {
                let step = &self.step;
                move |name: &str| value(&task.env, name).or_else(|| value(step, name))
            })
            .collect();
        let players: Vec<Player> =
            opens.iter().zip(&reads).map(|(opens, env)| Player { opens, env }).collect();
        act(&players)
    }
}

fn value(env: &[(&str, String)], name: &str) -> Option<String> {
    env.iter().find(|(n, _)| *n == name).map(|(_, value)| value.clone())
}

pub fn list<T: ToString>(numbers: &[T]) -> String {
    numbers.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

/// Up to 32 cards at any addresses with any minors, some of them off the bus.
pub fn nodes() -> impl Strategy<Value = Node> {
    let domain = select(vec![0, 1, 2, 9, 0x10, 0xb183, 0x10000]);
    let address = (domain, any::<u8>(), 0..32u8, 0..8u8);
    let minors = Just((0..64).collect::<Vec<u32>>()).prop_shuffle();
    let holes = vec(prop::bool::weighted(0.1), 32);
    let speeds = vec(0..3u8, 32);
    (btree_set(address, 0..=32), minors, holes, speeds, any::<u64>()).prop_map(
        |(addresses, minors, holes, speeds, seed)| {
            let card = |(i, (domain, bus, device, function)): (usize, _)| Card {
                pci: Pci { domain, bus, device, function },
                minor: minors[i],
                // Alike up to the last digits: a prefix of one names several.
                uuid: format!(
                    "GPU-{:08x}-0000-4000-8000-{:012x}",
                    seed as u32,
                    seed >> 40 ^ i as u64
                ),
                gone: holes[i],
                speed: speeds[i].into(),
                ..Card::default()
            };
            let mut cards: Vec<Card> = addresses.into_iter().enumerate().map(card).collect();
            cards.sort_by_key(|card| card.minor);
            Node { driver: "580.1".into(), cards, ..Node::default() }
        },
    )
}

/// Nodes with a gres list in any order, of some of the cards, lost ones too.
pub fn sites() -> impl Strategy<Value = Site> {
    let list = |node: &Node| {
        let mut by_bus = node.cards.clone();
        by_bus.sort_by_key(|card| card.pci);
        let minors: Vec<u32> = by_bus.iter().map(|card| card.minor).collect();
        let some = subsequence(minors.clone(), 0..=minors.len());
        prop_oneof![
            1 => Just(None),
            2 => Just(Some(minors.clone())),
            2 => Just(minors).prop_shuffle().prop_map(Some),
            2 => some.prop_shuffle().prop_map(Some),
        ]
    };
    let reading = prop_oneof![3 => Just(Reading::Rank), 1 => Just(Reading::File)];
    nodes().prop_flat_map(move |node| (list(&node), Just(node), reading.clone())).prop_map(
        |(gres, node, reading)| Site { node, gres: gres.filter(|g| !g.is_empty()), reading },
    )
}

/// Words without `map=`, which devices must be known for.
pub fn words() -> impl Strategy<Value = String> {
    let mode = select(vec!["", "auto", "all", "single", "rotate"]);
    let order = select(vec!["", "order=pci", "order=slurm"]);
    let ids = select(vec!["", "ids=uuid", "ids=index"]);
    (mode, order, ids).prop_map(|(mode, order, ids)| format!("{mode},{order},{ids}"))
}

/// Words with a `map=` that is right for few steps.
fn mapped_words() -> impl Strategy<Value = String> {
    let places = subsequence((0..8).collect::<Vec<u32>>(), 1..8).prop_shuffle();
    (words(), places).prop_map(|(words, places)| format!("{words},map={}", list(&places)))
}

/// Right, wrong and garbled values of a list variable.
fn any_list() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => subsequence((0..34).collect::<Vec<u32>>(), 0..12).prop_shuffle().prop_map(|l| list(&l)),
        3 => (0..16u32).prop_map(|n| n.to_string()),
        1 => vec(0..70u32, 0..8).prop_map(|l| list(&l)),
        1 => "[0-9,a-fGPUMI -]{0,40}",
        1 => any::<String>(),
    ]
}

/// Steps of which nothing need be true.
pub fn wild() -> impl Strategy<Value = World> {
    let words = prop_oneof![3 => words(), 1 => mapped_words()];
    let task = (vec(any::<Index>(), 0..32), any::<bool>(), prop::option::of(any_list()), 0..4u8);
    let step = (prop::option::of(any_list()), prop::option::of(0..40usize));
    (sites(), words, step, vec(task, 1..9)).prop_map(|(site, words, (said, count), tasks)| {
        let minors: Vec<u32> = site.node.cards.iter().map(|card| card.minor).collect();
        let uuids: Vec<&str> = site.node.cards.iter().map(|card| card.uuid.as_str()).collect();
        let task = |(some, all, value, kind): (Vec<Index>, bool, Option<String>, u8)| {
            let mut opens: BTreeSet<u32> = minors.iter().copied().collect();
            let mut env = Vec::new();
            if !all && !minors.is_empty() {
                opens = some.iter().map(|index| *index.get(&minors)).collect();
            }
            if kind > 1 {
                env.push(("SLURMD_TRES_BIND", "gres/gpu:single:1".to_owned()));
            }
            if kind == 3 && !uuids.is_empty() {
                let named: Vec<&str> = some.iter().take(3).map(|i| *i.get(&uuids)).collect();
                env.push(("CUDA_VISIBLE_DEVICES", named.join(",")));
            } else {
                env.extend(value.map(|list| ("CUDA_VISIBLE_DEVICES", list)));
            }
            Task { opens, env }
        };
        let tasks = tasks.into_iter().map(task).collect();
        let mut step = Vec::new();
        step.extend(said.map(|list| ("SLURM_STEP_GPUS", list)));
        step.extend(count.map(|count| ("SLURM_GPUS_ON_NODE", count.to_string())));
        World { site, words, step, tasks }
    })
}

/// A step as Slurm launches it on a node that constrains devices, whole or
/// bound in groups of tasks that hold the same set.
#[derive(Clone, Debug)]
pub struct Launched {
    pub world: World,
    /// The groups' cards as minors, by position.
    pub sets: Vec<Vec<u32>>,
    /// Each task's group; one group: no binding.
    pub groups: Vec<usize>,
}

pub fn launched() -> impl Strategy<Value = Launched> {
    let whole = sites().prop_filter("needs a card that Slurm can give", |site| {
        site.positions().is_some_and(|list| list.iter().any(Option::is_some))
    });
    whole
        .prop_flat_map(|site| {
            let listed = site.gres.clone().unwrap_or_default();
            let alive: Vec<u32> =
                listed.into_iter().filter(|minor| site.minors().contains(minor)).collect();
            let cards = alive.len();
            let held = subsequence(alive, 1..=cards);
            (Just(site), held, words(), (1..4usize, any::<bool>()), vec(0..4usize, 1..40))
        })
        .prop_map(|(site, held, words, (groups, by_uuid), tasks)| {
            let groups = groups.min(held.len());
            let tasks: Vec<usize> = tasks.into_iter().map(|group| group % groups).collect();
            let sets: Vec<Vec<u32>> =
                held.chunks(held.len().div_ceil(groups)).map(<[u32]>::to_vec).collect();
            let groups: Vec<usize> = tasks.iter().map(|group| group % sets.len()).collect();
            let listed = site.gres.as_ref().unwrap();
            let positions: Vec<usize> =
                held.iter().map(|m| listed.iter().position(|l| l == m).unwrap()).collect();
            let task = |group: &usize| {
                let mut env = Vec::new();
                if sets.len() > 1 {
                    env.push(("SLURMD_TRES_BIND", "gres/gpu:map:0".to_owned()));
                    let set = &sets[*group];
                    let card = |minor| site.node.cards.iter().find(|c| c.minor == minor);
                    let value = match by_uuid {
                        true => set.iter().map(|m| card(*m).unwrap().uuid.clone()).collect(),
                        false => (0..set.len()).map(|place| place.to_string()).collect::<Vec<_>>(),
                    };
                    env.push(("CUDA_VISIBLE_DEVICES", value.join(",")));
                }
                Task { opens: sets[*group].iter().copied().collect(), env }
            };
            let tasks = groups.iter().map(task).collect();
            let step = vec![("SLURM_STEP_GPUS", list(&positions))];
            Launched { world: World { site, words, step, tasks }, sets, groups }
        })
}

/// Two jobs with gpu-align, on a node that does not constrain devices, that
/// Slurm gave different positions; tasks may be bound, by position or, as
/// under `--gres-flags=allow-task-sharing`, by place within the step.
pub fn neighbours() -> impl Strategy<Value = [World; 2]> {
    sites()
        .prop_flat_map(|site| {
            let positions = site.gres.as_ref().map_or(site.minors().len(), Vec::len);
            let order = Just((0..positions).collect::<Vec<_>>()).prop_shuffle();
            let cut = (any::<Index>(), any::<Index>());
            let bound = vec(prop::option::of((any::<Index>(), any::<bool>())), 1..5);
            (Just(site), order, cut, words(), words(), bound)
        })
        .prop_map(|(site, order, cut, ours, theirs, bound)| {
            let cut = cut.0.index(order.len() + 1);
            let (first, second) = order.split_at(cut);
            let world = |held: &[usize], words: String| {
                let all: BTreeSet<u32> = site.minors().into_iter().collect();
                let task = |bound: &Option<(Index, bool)>| {
                    let mut env = Vec::new();
                    if let Some((index, is_place)) = bound.filter(|_| !held.is_empty()) {
                        let place = index.index(held.len());
                        let number = if is_place { place } else { held[place] };
                        env.push(("SLURMD_TRES_BIND", "gres/gpu:single:1".to_owned()));
                        env.push(("CUDA_VISIBLE_DEVICES", number.to_string()));
                    }
                    Task { opens: all.clone(), env }
                };
                let tasks = bound.iter().map(task).collect();
                let step = vec![("SLURM_STEP_GPUS", list(held))];
                World { site: site.clone(), words, step, tasks }
            };
            [world(first, ours), world(second, theirs)]
        })
}
