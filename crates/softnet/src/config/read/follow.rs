//! Reads `stack.follow`.

use std::time::Duration;

use super::{Read, Table, whole};
use crate::config::check::HOLD;
use crate::config::errors::Section;
use crate::config::follow::{FollowConfig, FpmConfig, LOCAL, table};
use crate::config::value::shown;

impl Read {
    /// `"kernel"` or `"fpm"`, or a table that says what of it.
    pub(super) fn follow(&mut self, stack: Table<'_>) -> Option<FollowConfig> {
        let value = stack.get("follow")?;
        match value.get_ref().as_str() {
            Some("kernel") => return Some(FollowConfig::default()),
            Some("fpm") => return Some(FollowConfig::fpm()),
            None if value.get_ref().as_table().is_some() => {}
            _ => {
                let message = format!(
                    "expected \"kernel\", \"fpm\", or {{ tables = [\"main\", 100] }}, found {}",
                    shown(value)
                );
                self.wrong(stack, "follow", &message);
                return None;
            }
        }
        let follow = self.table(Section::Follow, value)?;
        self.known_keys(follow, &["tables", "neighbours", "addresses", "fpm", "hold"]);
        let mut config = FollowConfig { fpm: self.fpm(follow), ..FollowConfig::default() };
        if let Some(neighbours) = self.boolean(follow, "neighbours") {
            config.neighbours = neighbours;
        }
        if let Some(addresses) = self.boolean(follow, "addresses") {
            config.addresses = addresses;
        }
        let items = self.items(follow, "tables", "a list of tables, such as [\"main\", 100]");
        let mut tables = Vec::new();
        for (item, value) in items {
            let number = value.get_ref().as_str().map_or_else(|| whole::<u32>(value.get_ref()), table);
            let place = Section::Follow.item("tables", item);
            match number.filter(|number| ![0, LOCAL].contains(number)) {
                Some(number) if tables.contains(&number) => {
                    self.problem(place, value.span(), format!("{} is there twice", shown(value)));
                }
                Some(number) => tables.push(number),
                None => {
                    let message = format!(
                        "expected \"main\", \"default\" or the number of another routing table but 0 and {LOCAL} (the \
                         kernel's own addresses), found {}",
                        shown(value)
                    );
                    self.problem(place, value.span(), message);
                }
            }
        }
        if follow.get("tables").is_some() {
            config.tables = tables;
        }
        Some(config)
    }

    /// The keys of zebra's routes.
    fn fpm(&mut self, follow: Table<'_>) -> Option<FpmConfig> {
        let hold = self.integer::<u32>(follow, "hold", &HOLD);
        if follow.get("fpm").is_none() {
            if follow.get("hold").is_some() {
                let message = "expected fpm = \"127.0.0.1:2620\" beside it: it is of routes that zebra tells";
                self.wrong(follow, "hold", message);
            }
            return None;
        }
        let mut config = FpmConfig::default();
        let expected = "an address of loopback and a port, such as \"127.0.0.1:2620\"";
        let listen = self.value(follow, "fpm", expected, |value| {
            let listen = value.as_str()?.parse().ok()?;
            FpmConfig::new(listen).is_local().then_some(listen)
        });
        config.listen = listen.unwrap_or(config.listen);
        if let Some(hold) = hold {
            match HOLD.wrong(hold.into()) {
                Some(wrong) => self.wrong(follow, "hold", &wrong),
                None => config.hold = Duration::from_secs(hold.into()),
            }
        }
        Some(config)
    }
}
