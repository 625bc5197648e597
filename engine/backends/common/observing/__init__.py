"""What the taps for diagnosis share: functions that stand in for a framework's, forwards of modules."""
