//! How `show skb` looks to people: the region, where its heads and frames are, and what each thread
//! does with them.

use softnet::control::show::{SkbCacheRow, SkbContextRow, SkbPool, SkbStats};

use super::rows::{Cell, Since, cells_table, counter, left, right};
use crate::text::{bytes, grouped};

/// A cache of a context, with the same some seconds ago: what it holds, or with `remote` what goes
/// to and from others.
fn cache(
    thread: &str,
    kind: &'static str,
    now: &SkbCacheRow,
    since: Since<'_, SkbCacheRow>,
    remote: bool,
) -> Vec<Cell> {
    let count = |field: fn(&SkbCacheRow) -> u64| counter(now, since, field);
    let mut cells = vec![left("thread", if thread.is_empty() { "-" } else { thread }), left("kind", kind)];
    cells.extend(match remote {
        false => vec![
            right("cached", grouped(now.cached)),
            right("refills", count(|c| c.refills)),
            right("flushes", count(|c| c.flushes)),
        ],
        true => vec![
            right("deferred", grouped(now.deferred)),
            right("came home", count(|c| c.came_home)),
            right("remote frees", count(|c| c.remote_frees)),
            right("kicks", count(|c| c.kicks)),
            right("at limit", count(|c| c.local_at_limit)),
        ],
    });
    cells
}

fn pool(kind: &'static str, pool: &SkbPool) -> Vec<Cell> {
    let cache = format!("{}/{}/{}", pool.cache_size, pool.cache_refill, pool.cache_flush);
    vec![
        left("kind", kind),
        right("total", grouped(pool.total)),
        right("in use", grouped(pool.in_use)),
        right("cached", grouped(pool.cached)),
        right("deferred", grouped(pool.deferred)),
        right("free", grouped(pool.free)),
        right("cache", cache),
    ]
}

/// All of it. With the same some seconds ago, counters become rates.
pub(super) fn tables(now: &SkbStats, before: Option<(&SkbStats, f64)>) -> String {
    let since = before.map(|(then, seconds)| (Some(then), seconds));
    let limit = match now.skb_defer_max {
        0 => "off".into(),
        max => format!("skb_defer_max {}", grouped(max)),
    };
    let summary = format!(
        "region {}: {} of frames, {} each; remote free {limit}; ran out {}, leaked {}\n",
        now.region,
        bytes(now.frames.total * now.frame_size),
        bytes(now.frame_size),
        counter(now, since, |s| s.exhausted),
        grouped(now.leaked),
    );
    let pools = cells_table(vec![pool("heads", &now.heads), pool("frames", &now.frames)]);
    let rows = |(at, context): (usize, &SkbContextRow), remote: bool| {
        let then = before.map(|(then, seconds)| {
            // Contexts come and go; the place and the name together tell.
            let same = |old: &&SkbContextRow| old.thread == context.thread;
            (then.contexts.get(at).filter(same), seconds)
        });
        let of = |field: fn(&SkbContextRow) -> &SkbCacheRow| then.map(|(then, s)| (then.map(field), s));
        [
            cache(&context.thread, "heads", &context.heads, of(|c| &c.heads), remote),
            cache(&context.thread, "frames", &context.frames, of(|c| &c.frames), remote),
        ]
    };
    let all =
        |remote| cells_table(now.contexts.iter().enumerate().flat_map(|row| rows(row, remote)).collect());
    let mut text = format!("{summary}\n{pools}\n{}", all(false));
    if now.skb_defer_max > 0 {
        text += &format!("\n{}", all(true));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_aligns_and_fits() {
        let large = 9_876_543_210u64;
        let cache = json!({"cached": 128, "deferred": 127, "refills": large, "flushes": large, "remote_frees": large,
            "kicks": 1_234_567, "local_at_limit": 7_654_321, "came_home": large});
        let pool = json!({"total": 524_288, "free": 1, "cached": 128, "deferred": 127, "in_use": 524_032,
            "cache_size": 4096, "cache_refill": 32, "cache_flush": 32});
        let contexts = json!([
            {"thread": "(ended)", "heads": cache, "frames": cache},
            {"thread": "napi/eth1-8193", "heads": cache, "frames": cache},
            {"thread": "", "heads": cache, "frames": cache},
        ]);
        for limit in [0, 128] {
            let stats: SkbStats =
                serde_json::from_value(json!({"region": 1, "frame_size": 2048, "heads": pool,
                "frames": pool, "skb_defer_max": limit, "exhausted": 3, "leaked": 0, "contexts": contexts}))
                .unwrap();
            let shown = tables(&stats, None);
            for line in shown.lines() {
                assert!(line.chars().count() <= 100, "{line}");
            }
            assert_eq!(shown.contains("REMOTE FREES"), limit > 0, "{shown}");
            assert!(shown.contains("ran out 3, leaked 0"), "{shown}");
            let rates = tables(&stats, Some((&stats, 2.0)));
            assert!(rates.contains("ran out 0/s"), "{rates}");
        }
    }
}
