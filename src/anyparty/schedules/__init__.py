"""When each party steps, apart from the method: schedules over any split method, and the clock that they ask."""
