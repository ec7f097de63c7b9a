//! What holds for every node, every step and every request.

mod played;
mod worlds;

use std::collections::{BTreeMap, BTreeSet};

use gpu_align::align::plan::Layout;
use gpu_align::device::Device;
use gpu_align::launch::Decision;
use proptest::prelude::*;
use worlds::{Launched, World, launched, neighbours, wild};

fn variable<'a>(decision: &'a Decision, name: &str) -> &'a str {
    decision.variables.iter().find(|(n, _)| *n == name).map_or("", |(_, value)| value)
}

fn decided(plan: &[Result<Option<Decision>, String>]) -> impl Iterator<Item = (usize, &Decision)> {
    plan.iter().enumerate().filter_map(|(local, d)| Some((local, d.as_ref().ok()?.as_ref()?)))
}

/// The minors of a task's visible cards, in order.
fn visible(world: &World, decision: &Decision) -> Vec<u32> {
    let known = world.site.inventory();
    decision.plan.visible.iter().map(|device| known.card(*device).minor.0).collect()
}

/// The minors of the cards that are the task's own.
fn own(world: &World, decision: &Decision) -> Vec<u32> {
    let first = decision.plan.own;
    visible(world, decision)[first..first + decision.plan.own_count].to_vec()
}

/// What a task can open of the cards that Slurm gives out, all if that is not known.
fn configured_reach(world: &World, local: usize) -> BTreeSet<u32> {
    let alive: BTreeSet<u32> = world.site.minors().into_iter().collect();
    let listed: BTreeSet<u32> = world.site.gres.iter().flatten().copied().collect();
    let given_out: BTreeSet<u32> = listed.intersection(&alive).copied().collect();
    let given_out = if given_out.is_empty() { alive } else { given_out };
    world.tasks[local].opens.intersection(&given_out).copied().collect()
}

/// The positions that the step was told, if they are a list of numbers.
fn said(world: &World) -> Option<Vec<usize>> {
    let (_, list) = world.step.iter().find(|(name, _)| *name == "SLURM_STEP_GPUS")?;
    list.split(',').map(|n| Some(n.trim().parse::<u32>().ok()? as usize)).collect()
}

/// How many devices the step was given, if it was told.
fn given(world: &World) -> Option<usize> {
    said(world).map(|positions| positions.len())
}

/// The minors that its positions mean, by rank or by file.
fn any_reading(world: &World) -> BTreeSet<u32> {
    let ranks = world.site.minors();
    let listed = world.site.gres.clone().unwrap_or_default();
    let both = |n: usize| [ranks.get(n).copied(), listed.get(n).copied()];
    said(world).unwrap_or_default().into_iter().flat_map(both).flatten().collect()
}

/// Whether the counts differ by at most one.
fn even(counts: &BTreeMap<u32, usize>) -> bool {
    let most = counts.values().max().copied().unwrap_or(0);
    most - counts.values().min().copied().unwrap_or(0) <= 1
}

/// A case that failed becomes a unit test or a field case, not a file of seeds.
fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        max_shrink_iters: 1000,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn rule_3_nothing_outside_the_reach_or_the_step_is_ever_visible(world in wild()) {
        let step = any_reading(&world);
        for (local, decision) in decided(&world.plan()) {
            let seen = visible(&world, decision);
            let reach = configured_reach(&world, local);
            prop_assert!(seen.iter().all(|minor| reach.contains(minor)), "{seen:?} of {reach:?}");
            if let Some(given) = given(&world) {
                prop_assert!(seen.len() <= given, "{seen:?} of {given}");
                if reach.len() > given {
                    prop_assert!(seen.iter().all(|minor| step.contains(minor)), "{seen:?} of {step:?}");
                }
            }
        }
    }

    #[test]
    fn no_device_is_visible_twice_and_the_own_one_is(world in wild()) {
        for (_, decision) in decided(&world.plan()) {
            let plan = &decision.plan;
            let distinct: BTreeSet<Device> = plan.visible.iter().copied().collect();
            prop_assert_eq!(distinct.len(), plan.visible.len());
            prop_assert!(plan.own_count >= 1 && plan.own + plan.own_count <= plan.visible.len());
            let uuids: Vec<&str> = variable(decision, "GPU_ALIGN_UUIDS").split(',').collect();
            prop_assert_eq!(uuids[plan.own], variable(decision, "GPU_ALIGN_CARD"));
        }
    }

    #[test]
    fn the_same_inputs_give_the_same_plan(world in wild()) {
        // Cards listed in another order are the same cards.
        let mut turned = world.clone();
        turned.site.node.cards.reverse();
        prop_assert_eq!(world.plan(), turned.plan());
    }

    #[test]
    fn rule_9_the_text_is_full_uuids_or_plain_decimals(world in wild()) {
        for (_, decision) in decided(&world.plan()) {
            let text = variable(decision, "CUDA_VISIBLE_DEVICES");
            let fields: Vec<&str> = text.split(',').collect();
            let decimal = |f: &&str| f.parse::<u32>().is_ok_and(|n| n.to_string() == **f);
            let full = |f: &&str| f.len() == 40 && f.starts_with("GPU-") && !f.contains('?')
                && f[4..].bytes().all(|b| b == b'-' || b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
            let index = world.words.contains("ids=index");
            prop_assert!(if index { fields.iter().all(decimal) } else { fields.iter().all(full) }, "{text}");
            let distinct: BTreeSet<&str> = fields.iter().copied().collect();
            prop_assert_eq!(distinct.len(), fields.len());
        }
    }

    #[test]
    fn cuda_reads_either_form_as_the_cards_that_are_announced(world in wild()) {
        for ids in ["ids=uuid", "ids=index"] {
            let mut world = world.clone();
            world.words = format!("{},{ids}", world.words);
            for (local, decision) in decided(&world.plan()) {
                let announced: Vec<&str> = variable(decision, "GPU_ALIGN_UUIDS").split(',').collect();
                prop_assert_eq!(world.cuda(local, decision), announced);
            }
        }
    }

    #[test]
    fn every_task_of_a_right_step_is_aligned_within_its_set(step in launched()) {
        let Launched { world, sets, groups } = &step;
        let plan = world.plan();
        prop_assert_eq!(decided(&plan).count(), world.tasks.len(), "{:?}", plan);
        for (local, decision) in decided(&plan) {
            let seen: BTreeSet<u32> = visible(world, decision).into_iter().collect();
            let set: BTreeSet<u32> = sets[groups[local]].iter().copied().collect();
            if decision.plan.layout == Layout::Single {
                prop_assert!(seen.is_subset(&set));
            } else {
                prop_assert_eq!(seen, set);
            }
        }
    }

    #[test]
    fn what_no_binding_changes_is_foreseen(step in launched()) {
        let plan = step.world.plan();
        let unbound = step.sets.len() == 1 && !step.world.words.contains("ids=index");
        for (foreseen, decision) in step.world.foreseen().into_iter().zip(plan) {
            prop_assert_eq!(foreseen, decision.ok().flatten().filter(|_| unbound));
        }
    }

    #[test]
    fn ranks_are_spread_evenly_and_leave_no_card_idle(step in launched()) {
        let Launched { world, sets, groups } = &step;
        let plan = world.plan();
        for (group, set) in sets.iter().enumerate() {
            let mut ranks: BTreeMap<u32, usize> = set.iter().map(|minor| (*minor, 0)).collect();
            let members = decided(&plan).filter(|(local, _)| groups[*local] == group);
            let mut count = 0;
            let mut single = false;
            for (_, decision) in members {
                count += 1;
                single |= decision.plan.layout == Layout::Single;
                own(world, decision).into_iter().for_each(|minor| *ranks.get_mut(&minor).unwrap() += 1);
            }
            prop_assert!(even(&ranks), "{ranks:?}");
            if count >= set.len() || single && count > 0 {
                prop_assert!(ranks.values().all(|ranks| *ranks > 0), "idle: {ranks:?}");
            }
        }
    }

    #[test]
    fn single_gives_contiguous_blocks_whose_sizes_differ_by_at_most_one(step in launched()) {
        let Launched { world, sets, groups } = &step;
        let mut world = world.clone();
        world.words = format!("{},single", world.words);
        let plan = world.plan();
        let by_bus = world.site.minors();
        for (group, set) in sets.iter().enumerate() {
            let mut order = set.clone();
            if world.words.contains("order=slurm") {
                let listed = world.site.gres.as_ref().unwrap();
                order.sort_by_key(|minor| listed.iter().position(|m| m == minor));
            } else {
                order.sort_by_key(|minor| by_bus.iter().position(|m| m == minor));
            }
            let members: Vec<Vec<u32>> = decided(&plan)
                .filter(|(local, _)| groups[*local] == group)
                .map(|(_, decision)| visible(&world, decision))
                .collect();
            let mut joined: Vec<u32> = members.concat();
            joined.dedup();
            if !members.is_empty() {
                prop_assert_eq!(joined, order, "{:?}", members);
            }
            let sizes: Vec<usize> = members.iter().map(Vec::len).collect();
            let (least, most) = (sizes.iter().min(), sizes.iter().max());
            prop_assert!(most.zip(least).is_none_or(|(most, least)| most - least <= 1), "{sizes:?}");
        }
    }

    #[test]
    fn all_and_rotate_keep_their_promise_of_where_the_own_card_is(step in launched()) {
        let Launched { world, sets, groups } = &step;
        for (local, decision) in decided(&world.plan()) {
            let set = &sets[groups[local]];
            let turn = groups[..local].iter().filter(|group| **group == groups[local]).count();
            match decision.plan.layout {
                Layout::All | Layout::Bound if set.len() > 1 => {
                    prop_assert_eq!(decision.plan.own, turn % set.len());
                }
                _ => prop_assert_eq!(decision.plan.own, 0),
            }
        }
    }

    #[test]
    fn rule_2_two_aligned_jobs_never_meet_on_a_card(jobs in neighbours()) {
        let [first, second] = jobs.each_ref().map(|world| {
            decided(&world.plan()).flat_map(|(_, d)| visible(world, d)).collect::<BTreeSet<u32>>()
        });
        prop_assert!(first.is_disjoint(&second), "{first:?} and {second:?}");
    }
}
