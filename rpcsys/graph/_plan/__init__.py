"""Where to cut, and what runs where: profiles, a cost model, trials on the devices, the plan."""
