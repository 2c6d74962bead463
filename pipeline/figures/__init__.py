"""What stages report, typed from where it is measured to where it is shown."""
