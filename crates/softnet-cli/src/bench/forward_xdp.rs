//! `softnet bench forward --device xdp`.
use super::Common;
use super::harness::Report;
pub(super) fn run(_: &Common) -> Result<Report, String> {
    Err("x".into())
}
