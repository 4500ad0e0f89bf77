//! Generates the types and handlers of the contract.

fn main() -> Result<(), taskyard_contract::build::BuildError> {
    taskyard_contract::build::generate("queues.yaml")?;
    Ok(())
}
