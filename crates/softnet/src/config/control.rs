//! Which users may ask a running stack: `[control]`.

/// `[control]`: the control socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControlConfig {
    /// The group, by name or number, whose members may look (`softnet show`, `top`), and change
    /// nothing; `None`: only the user that runs the stack, and root, may ask it.
    pub group: Option<String>,
}
