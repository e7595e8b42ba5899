"""What the processes of one instance share on a host; knows neither supervisor nor worker."""
