//! softnet beside the kernel's own router: every case is sent to both, each in namespaces of its own with the same addresses,
//! routes, MTUs and neighbours, and what comes out on every link is compared.
//!
//! A difference fails unless `differences.md` has it, with its reason; one that the table has and that is no longer there fails
//! too. `SOFTNET_WIRE=<part of a name>` runs the cases with such names alone, each by itself, and prints what either router did;
//! see ARCHITECTURE.md. `SOFTNET_WIRE_AMEND=1` also writes the table anew, as far as that can be done without judging.
//!
//! Nothing is asserted about how long anything takes.

mod case;
mod cases;
mod decode;
mod net;
mod packet;
mod router;
mod run;
mod table;

use std::collections::BTreeSet;

use softnet::driver::XdpMode;
use softnet_testkit::net_allowed;

use case::{Case, Cases};
use run::{Outcome, Pair, describe};
use table::{Difference, amend, difference, known, rows};

/// Runs a case that is not as expected so often alone, before that counts.
const RETRIES: usize = 3;

fn differs(outcome: &Outcome) -> Option<Difference> {
    difference(&outcome.said[0], &outcome.said[1])
}

fn compare(mode: XdpMode, cases: Cases) {
    if !net_allowed() {
        return;
    }
    let wanted = std::env::var("SOFTNET_WIRE").ok();
    let known = known();
    let picked: Vec<&Case> = match &wanted {
        Some(part) => cases.all.iter().filter(|case| case.name.contains(part)).collect(),
        None => cases.all.iter().collect(),
    };
    if picked.is_empty() {
        return;
    }
    let mut pair = Pair::new(mode);
    if wanted.is_some() {
        for case in picked {
            show(case, &pair.run(&[case])[0]);
        }
        return pair.end();
    }
    let expected = |case: &Case| known.get(&case.name).map(|row| row.difference.clone());
    let mut wrong: Vec<(&Case, Option<Difference>)> = Vec::new();
    let outcomes = pair.run_all(&picked);
    for (case, outcome) in picked.into_iter().zip(outcomes) {
        let first = differs(&outcome);
        let mut found = first.clone();
        for _ in 0..RETRIES {
            if found == expected(case) {
                break;
            }
            found = differs(&pair.run(&[case])[0]);
        }
        if found != first {
            println!("{} was otherwise among others: {first:?}", case.name);
        }
        if found != expected(case) {
            wrong.push((case, found));
        }
    }
    let stray = std::mem::take(&mut pair.stray);
    pair.end();
    let (mut new, mut stale) = (Vec::new(), BTreeSet::new());
    for (case, found) in wrong {
        match found {
            Some(found) => new.push((case.name.clone(), found)),
            None => _ = stale.insert(case.name.clone()),
        }
    }
    if std::env::var_os("SOFTNET_WIRE_AMEND").is_some() {
        amend(stale.clone(), &new);
    }
    assert!(
        new.is_empty() && stale.is_empty(),
        "\nThese differ, and not as differences.md says; as rows of it:\n\n{}\nThese no longer differ, and differences.md says \
         so: {stale:?}\n",
        rows(&new)
    );
    assert!(stray.iter().all(Vec::is_empty), "frames that are no case's: {stray:02x?}");
}

/// Prints what was sent in a run of a case, and what either router did.
fn show(case: &Case, outcome: &Outcome) {
    println!("\n{}", case.name);
    describe(outcome).iter().for_each(|line| println!("  sent     {line}"));
    for (name, said) in ["kernel", "softnet"].into_iter().zip(&outcome.said) {
        said.iter().for_each(|said| println!("  {name:8} {}", said.line()));
        if said.is_empty() {
            println!("  {name:8} nothing");
        }
    }
    match (differs(outcome), known().get(&case.name)) {
        (None, None) => println!("  the same"),
        (None, Some(row)) => println!("  the same, but the table says otherwise: {}", row.reason),
        (Some(found), row) => {
            let listed = row.filter(|row| row.difference == found);
            println!("  {}", listed.map_or("not in the table", |row| &row.reason));
            print!("  {}", rows(&[(case.name.clone(), found)]));
        }
    }
}

macro_rules! areas {
    ($($(#[$what:meta])* $area:ident),+ $(,)?) => {
        $($(#[$what])* #[test] fn $area() { compare(XdpMode::Native, cases::$area::cases()); })+

        fn all() -> Vec<Cases> {
            vec![$(cases::$area::cases()),+]
        }
    };
}

areas! {
    anycast,
    arp,
    echo,
    errors,
    extension,
    forward,
    frag4,
    frag6,
    ipv4,
    ipv6,
    martian,
    mtu,
    nd,
    options,
    redirect,
    scope,
    source,
    tcp,
    udp,
    vlan,
}

/// The same is true where the driver leaves XDP to the kernel: of what depends on how frames come and go.
#[test]
fn in_skb_mode() {
    for cases in [cases::forward::cases(), cases::mtu::cases(), cases::vlan::cases()] {
        compare(XdpMode::Skb, cases);
    }
}

#[test]
fn the_table_is_about_cases_that_there_are() {
    let mut names = BTreeSet::new();
    for case in all().iter().flat_map(|cases| &cases.all) {
        assert!(names.insert(case.name.clone()), "{} is there twice", case.name);
    }
    println!("{} cases, {} of them differ", names.len(), known().len());
    let unknown: Vec<_> = known().into_keys().filter(|name| !names.contains(name)).collect();
    assert!(unknown.is_empty(), "differences.md has cases that are not there: {unknown:?}");
}
